"""The page's style sheet: dark and light as the reader's system has it, light in print."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #ffffff; --panel: #f5f6f8; --ink: #16181d; --muted: #5a6070; --line: #d5d8de; --grid: #e4e6eb;
  --gap: #9aa0ad; --tint: .2;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #14161a; --panel: #1c1f25; --ink: #e8eaee; --muted: #a4abb9; --line: #3a3f49; --grid: #2a2e36;
    --gap: #6b7280; --tint: .36; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.25rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere; }
p { margin: .35rem 0; max-width: 60rem; overflow-wrap: anywhere; }
.subtitle, .note, footer { color: var(--muted); }
.note { font-size: .9rem; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); font-size: .85rem; }
a { color: inherit; }
figure { margin: .5rem 0 1.25rem; break-inside: avoid; }
figcaption { font-weight: 600; overflow-wrap: anywhere; }
figcaption .note { font-weight: 400; }
.plots { display: grid; gap: 0 1.5rem; }
@media (min-width: 60rem) { .plots.many { grid-template-columns: 1fr 1fr; } }
svg { display: block; overflow: visible; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: var(--muted); }
svg.plot > svg { overflow: hidden; }
.grid { stroke: var(--grid); }
.axis, .tick { stroke: var(--muted); }
.limit { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 2 3; }
.data { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round;
  vector-effect: non-scaling-stroke; }
.data.thin { stroke-width: 1; opacity: .75; }
.data.dashed { stroke-dasharray: 6 4; stroke-linecap: butt; }
.fill, .band { opacity: var(--tint); }
.moment { stroke-width: 1.5; }
.gap { fill: var(--gap); opacity: .3; }
svg text.halo { fill: var(--ink); paint-order: stroke; stroke: var(--ground); stroke-width: 3px;
  stroke-linejoin: round; }
svg text.strong { font-weight: 700; }
svg text.tick-label { fill: var(--muted); }
@media (max-width: 40rem) { .wide { display: none; } body { padding: .75rem; } }
.bar-head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; margin-top: .4rem;
  font-size: .9rem; }
.bar-figure { font-variant-numeric: tabular-nums; }
svg text.on-bar { text-anchor: middle; fill: inherit; }
svg text.on-bar[fill="#ffffff"] { fill: #ffffff; }
svg text.on-bar[fill="#0b1220"] { fill: #0b1220; }
.range { stroke: var(--ink); stroke-width: 1.6; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1rem; margin: .4rem 0; padding: 0;
  font-size: .85rem; color: var(--muted); }
.legend svg { display: inline-block; vertical-align: -1px; }
.scrolls { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: var(--muted); white-space: nowrap; }
td code { white-space: nowrap; }
.words { display: inline-block; min-width: 13rem; }
th, td { padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.nowrap { white-space: nowrap; }
.sign { display: inline-block; min-width: 1.4em; padding: 0 .35em; border-radius: .25em; text-align: center;
  background: var(--panel); white-space: nowrap; }
.sign.bad { background: #cb1a16; color: #ffffff; }
.sign.warning { background: #c4770d; color: #0b1220; }
.sign.good { background: #207346; color: #ffffff; }
pre { background: var(--panel); padding: .75rem; overflow-x: auto; font: 13px/1.45 ui-monospace, "DejaVu Sans Mono",
  "Liberation Mono", monospace; border-radius: .35rem; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; overflow-wrap: anywhere; }
summary { cursor: pointer; }
ul.lines { margin: .35rem 0; padding-left: 1.2rem; max-width: 60rem; }
@media print {
  :root { color-scheme: light; --ground: #ffffff; --panel: #f5f6f8; --ink: #000000; --muted: #44484f; --line: #b5b8be;
    --grid: #dddfe4; --gap: #9aa0ad; --tint: .2; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, h3 { break-after: avoid; }
  tr, .bars { break-inside: avoid; }
  .scrolls, pre { overflow: visible; }
  pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; block-size: auto; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
