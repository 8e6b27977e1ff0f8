"""The style sheet of the page, and the policy that forbids the page everything else."""

import base64
import hashlib
from typing import Final

# Nine colours that people with the common kinds of colour blindness can tell apart, each at least 3:1
# against its background; the last, grey, is for all others together.
CSS: Final = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f5; --card: #ffffff; --ink: #1b232d; --soft: #56616e; --rule: #dfe3e6; --rail: #e9edef;
  --c0: #2a6fb5; --c1: #c96f12; --c2: #23876a; --c3: #b8473c; --c4: #7d5bb0; --c5: #2b8ca6; --c6: #8d7216;
  --c7: #b9508a; --rest: #7d8894; --hover: #1b232d; --shade: #c9d0d6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --card: #1a2027; --ink: #e7ebef; --soft: #9ca8b4; --rule: #2c343d; --rail: #28303a;
    --c0: #6aa9e9; --c1: #eb9a4b; --c2: #54c29d; --c3: #ea8073; --c4: #b295e3; --c5: #5fc2db; --c6: #cdb04c;
    --c7: #e588ba; --rest: #8b97a3; --hover: #ffffff; --shade: #46515d;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.015em; font-weight: 650; }
h2 { font-size: 18px; margin: 0 0 2px; letter-spacing: -0.005em; font-weight: 650; }
h3 { font-size: 15px; margin: 0 0 8px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 0; }
.soft, .note { color: var(--soft); }
.note { font-size: 13.5px; margin-bottom: 14px; max-width: 72ch; }
.note:last-child { margin-bottom: 0; }
.whole { white-space: nowrap; }
bdi { overflow-wrap: anywhere; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px; margin: 26px 0 20px;
  background: var(--rule); border: 1px solid var(--rule); border-radius: 12px; overflow: hidden;
}
.tiles div { background: var(--card); padding: 14px 16px 12px; }
.tiles dt { font-size: 13px; color: var(--soft); }
.tiles dd { margin: 0; }
.tiles .big { font-size: 23px; line-height: 1.3; font-weight: 600; letter-spacing: -0.01em; }
.tiles .big { white-space: nowrap; }
.tiles .small { font-size: 12.5px; color: var(--soft); }
.card {
  background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 20px 22px 18px; margin: 0 0 20px;
}
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 20px; }
.pair > :only-child { grid-column: 1 / -1; }
figure { margin: 0; position: relative; }
svg { display: block; }
.plot { overflow: visible; }
.plot text { font-size: 11.5px; fill: var(--soft); }
.plot .m { text-anchor: middle; } .plot .e { text-anchor: end; } .plot .s { text-anchor: start; }
.plot .up { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-linejoin: round; }
.grid { stroke: var(--rule); } .ground { stroke: var(--soft); } .tick { stroke: var(--soft); }
.hit { fill: var(--hover); fill-opacity: 0; } .hit:hover { fill-opacity: 0.1; }
.rail { fill: var(--rail); }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); } .c7 { fill: var(--c7); }
.rest { fill: var(--rest); }
.legend {
  list-style: none; margin: 12px 0 0; padding: 0; display: grid; gap: 4px 24px;
  grid-template-columns: repeat(auto-fill, minmax(215px, 1fr)); font-size: 13.5px;
}
.legend li { display: grid; grid-template-columns: 12px minmax(0, 1fr) auto; gap: 8px; }
.legend li { align-items: center; }
.legend span { color: var(--soft); }
.choice { position: absolute; opacity: 0; width: 1px; height: 1px; }
.choices {
  display: flex; gap: 2px; margin: 6px 0 12px; width: fit-content; background: var(--rail);
  border-radius: 8px; padding: 2px;
}
.choices label { font-size: 13px; padding: 3px 12px; border-radius: 6px; color: var(--soft); }
.choices label { cursor: pointer; }
.view { display: none; }
.choice.a:checked ~ .view.a, .choice.b:checked ~ .view.b { display: block; }
.choice.a:checked ~ .choices label.a, .choice.b:checked ~ .choices label.b {
  background: var(--card); color: var(--ink); box-shadow: 0 0 0 1px var(--rule);
}
.choice:focus-visible ~ .choices { outline: 2px solid var(--c0); outline-offset: 2px; }
.scroll {
  overflow-x: auto; background-color: var(--card); background-attachment: local, scroll;
  background-image: linear-gradient(to left, var(--card), var(--card)),
    linear-gradient(to left, var(--shade), transparent);
  background-position: right; background-repeat: no-repeat; background-size: 28px 100%, 14px 100%;
}
.scroll:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: right; padding: 7px 0 7px 18px; white-space: nowrap; vertical-align: middle; }
th, td { border-bottom: 1px solid var(--rule); }
th { font-size: 12.5px; font-weight: 500; color: var(--soft); }
tbody tr:last-child td, tbody tr:last-child th { border-bottom: 0; }
th:first-child, td:first-child, .left { text-align: left; }
th:first-child { padding-left: 0; }
tbody th { font-size: 14px; font-weight: 400; color: var(--ink); }
.name, .why { white-space: normal; min-width: 9em; }
.why { min-width: 13em; }
.wide { width: 26%; min-width: 90px; }
.keys {
  display: grid; gap: 22px 32px; grid-template-columns: repeat(auto-fill, minmax(min(270px, 100%), 1fr));
}
.keys ol { list-style: none; margin: 0; padding: 0; font-size: 13.5px; }
.keys li { margin: 0 0 8px; }
.keys .line { display: flex; justify-content: space-between; gap: 12px; margin-bottom: 3px; }
.keys .line > :first-child { min-width: 0; }
.keys .line > :last-child { white-space: nowrap; }
.more { font-size: 13px; color: var(--soft); margin-top: 8px; }
footer { font-size: 13px; color: var(--soft); padding-top: 4px; padding-bottom: 48px; }
footer p { max-width: 80ch; }
@media (max-width: 760px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 24px; }
  h1 { font-size: 24px; }
  .card { padding: 16px 14px 14px; border-radius: 10px; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .tiles .big { font-size: 20px; }
  .tiles div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .wide { display: none; }
  .legend { grid-template-columns: minmax(0, 1fr); }
}
@media print { .choices { display: none; } .card { break-inside: avoid; } }
"""


def policy() -> str:
    """Nothing is loaded, run or sent; only this style sheet counts."""
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
