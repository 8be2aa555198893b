"""The style sheet of the report: one text, whose hash the page's policy names.

Rule: looks are chosen here by class, for light and dark mode; no element has an inline style. Colours of
status classes also differ in lightness, so that people who do not see red or green can tell them apart.
"""

from __future__ import annotations

STYLE = """
:root{--back:#f4f5f7;--card:#fff;--text:#1b2430;--soft:#64707f;--line:#e3e7ec;--rail:#edf0f3;
--s1:#a9b4c0;--s2:#2f7fc1;--s3:#8fc3e8;--s4:#e8a33d;--s5:#c93c4b;--good:#2e8b57;--bad:#c93c4b;
--c1:#5b6ee1;--c2:#2a9d8f;--c3:#e8a33d;--c4:#c93c4b;--c5:#9b5de5;--c6:#6aa84f;--c7:#a9b4c0;
--spike:#c93c4b;--drop:#7a4fc9;--shade:#0001}
@media(prefers-color-scheme:dark){:root{--back:#11151b;--card:#1a2029;--text:#e5e9ef;--soft:#93a0b0;
--line:#2a323d;--rail:#262e38;--s1:#5d6975;--s2:#4a9ee0;--s3:#2b5f88;--s4:#e3a347;--s5:#e8616f;--good:#57b883;
--bad:#ef6d7a;--c1:#8090f5;--c2:#45bdae;--c3:#e3a347;--c4:#e8616f;--c5:#b98af0;--c6:#8cc76f;--c7:#5d6975;
--spike:#ef6d7a;--drop:#a98af0;--shade:#fff1}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 20px 48px;display:grid;gap:16px;
grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
header,.tiles,.wide{grid-column:1/-1}
header h1{margin:0;font-size:26px;letter-spacing:-.01em;overflow-wrap:anywhere}
header p{margin:4px 0 0;color:var(--soft);overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:12px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:12px 14px;display:flex;flex-direction:column;min-width:0}
.tile span{color:var(--soft);font-size:12.5px}
.tile b{font-size:24px;font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.tile i{font-style:normal;color:var(--soft);font-size:12px}
.tile.bad b{color:var(--bad)}.tile.good b{color:var(--good)}
.card{padding:16px 18px;min-width:0}
h2{margin:0;font-size:16px;font-weight:650}
.note{margin:2px 0 10px;color:var(--soft);font-size:12.5px}
.legend{margin:0 0 6px;display:flex;flex-wrap:wrap;gap:4px 16px;font-size:12.5px;color:var(--soft)}
.legend span{display:inline-flex;align-items:center;gap:6px}
.key{width:10px;height:10px}
.chart{display:block;width:100%;height:auto;overflow:visible}
.phone{display:none}
.tick{fill:var(--soft);font-size:11px;font-variant-numeric:tabular-nums}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid,.notch{stroke:var(--line);stroke-width:1}
.target{fill:transparent}.target:hover{fill:var(--shade)}
.area{stroke:none}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.peak{stroke:var(--soft);stroke-width:.8;opacity:.75}
.s1{fill:var(--s1)}.s2{fill:var(--s2)}.s3{fill:var(--s3)}.s4{fill:var(--s4)}.s5{fill:var(--s5)}
.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}.c5{fill:var(--c5)}
.c6{fill:var(--c6)}.c7{fill:var(--c7)}rect.good{fill:var(--good)}
.l1{fill:var(--s3)}.l2{fill:var(--s2)}.l3{fill:var(--s5)}
.line.l1{fill:none;stroke:var(--s3)}.line.l2{fill:none;stroke:var(--s2)}.line.l3{fill:none;stroke:var(--s5)}
.band{fill:var(--spike);opacity:.13}.flag{stroke:var(--spike);stroke-width:1;opacity:.7}.pin{fill:var(--spike)}
.band.rate_drop{fill:var(--drop)}.flag.rate_drop{stroke:var(--drop)}.pin.rate_drop{fill:var(--drop)}
.band.latency_jump{fill:var(--s4)}.flag.latency_jump{stroke:var(--s4)}.pin.latency_jump{fill:var(--s4)}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:13.5px}
th{color:var(--soft);font-weight:500;font-size:12px;text-align:left;padding:4px 10px 4px 0;white-space:nowrap}
td{padding:6px 10px 6px 0;border-top:1px solid var(--line);vertical-align:top}
td:last-child,th:last-child{padding-right:0}
.moment{white-space:nowrap}
.number,th.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.code{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace;font-size:12.5px;overflow-wrap:anywhere}
.text{width:100%}
.bar{display:block;width:100%;height:4px;margin-top:4px;border-radius:2px}
.barcell{width:34%;padding-top:10px}
.rail{fill:var(--rail)}
.tag{display:inline-block;padding:1px 8px;border-radius:9px;font-size:12px;background:var(--rail);
color:var(--spike);white-space:nowrap}
.tag.rate_drop{color:var(--drop)}.tag.latency_jump{color:var(--s4)}
.checks{list-style:none;margin:0;padding:0}
.checks li{padding:6px 0;border-top:1px solid var(--line)}
.checks b{display:inline-block;width:1.4em}.checks .good b{color:var(--good)}.checks .bad b{color:var(--bad)}
.checks i{display:block;margin-left:1.7em;color:var(--soft);font-style:normal;font-size:13px}
@media(max-width:720px){main{grid-template-columns:minmax(0,1fr);padding:16px 12px 32px;gap:12px}
.half{grid-column:1/-1}.desk{display:none}.phone{display:block}.card{padding:14px 12px}
header h1{font-size:22px}.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile b{font-size:20px}}
@media print{body{background:#fff}.card,.tile{break-inside:avoid}}
"""
