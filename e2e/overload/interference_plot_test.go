package overload

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// interference is what TestInterference found.
type interference struct {
	Capacity float64    `json:"online_capacity_requests_per_second"` // without a batch
	Alone    float64    `json:"batch_alone_lines_per_second"`        // without online requests
	TTFT     int        `json:"goal_ttft_ms"`
	TPOT     int        `json:"goal_tpot_ms"`
	Variants []*variant `json:"variants"`
}

// table shows the numbers as a table of Markdown.
func (r *interference) table() string {
	var b strings.Builder
	b.WriteString("| Online requests/s | | TTFT p50 | TTFT p99 | | TPOT p99 | Batch lines/s | Of what is left |\n|---|---|---|---|---|---|---|---|\n")
	for i, base := range r.Variants[0].Loads {
		for _, v := range r.Variants {
			m := v.Loads[i]
			fmt.Fprintf(&b, "| %.1f | %s | %.0f ms | %.0f ms | %.2f × | %.0f ms | %.1f | %.0f %% |\n", m.Online, v.Name, m.TTFT50, m.TTFT99, m.TTFT99/base.TTFT99, m.TPOT99, m.Lines, 100*m.Used)
		}
	}
	return b.String()
}

// Sizes of the plot, in pixels.
const (
	plotWidth, plotHeight = 380, 260
	plotLeft, plotTop     = 60, 50
)

// lineColours are those of the variants.
var lineColours = []string{"#555555", "#c0392b", "#1f6fb2", "#8e44ad"}

// plot draws the time to first token and the lines of the batch over the online load, as SVG.
func (r *interference) plot() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		2*(plotLeft+plotWidth)+40, plotTop+plotHeight+90)
	r.panel(&b, plotLeft, "TTFT p99 of online requests, ms", func(m *mixture) float64 { return m.TTFT99 }, float64(r.TTFT))
	r.panel(&b, 2*plotLeft+plotWidth+20, "batch, lines/s", func(m *mixture) float64 { return m.Lines }, math.NaN())
	for i, v := range r.Variants {
		x := plotLeft + 215*i
		fmt.Fprintf(&b, `<path d="M%d %dh24" stroke="%s" stroke-width="2.5"/><text x="%d" y="%d">%s</text>`+"\n", x, plotTop+plotHeight+66, lineColours[i], x+30, plotTop+plotHeight+70, v.Name)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel draws one value of all loads over the online load, and a dashed line at a goal.
func (r *interference) panel(b *bytes.Buffer, left int, title string, of func(*mixture) float64, goal float64) {
	most, widest := 0.0, 0.0
	if !math.IsNaN(goal) {
		most = goal
	}
	for _, v := range r.Variants {
		for i := range v.Loads {
			most, widest = max(most, of(&v.Loads[i])), max(widest, v.Loads[i].Online)
		}
	}
	step := niceStep(most)
	most, widest = math.Ceil(most/step)*step, widest*1.1
	x := func(rate float64) float64 { return float64(left) + rate/widest*plotWidth }
	y := func(value float64) float64 { return plotTop + plotHeight*(1-value/most) }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, plotTop-14, title)
	for value := 0.0; value <= most; value += step {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#dddddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, y(value), plotWidth, left-6, y(value)+4, value)
	}
	for _, m := range r.Variants[0].Loads {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%.1f</text>`+"\n", x(m.Online), plotTop+plotHeight+18, m.Online)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">online requests/s (%.1f at most without a batch)</text>`+"\n", left+plotWidth/2, plotTop+plotHeight+38, r.Capacity)
	if !math.IsNaN(goal) {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="#2e8b57" stroke-dasharray="6 4"/><text x="%d" y="%.1f" text-anchor="end" fill="#2e8b57">goal</text>`+"\n", left, y(goal), plotWidth, left+plotWidth, y(goal)-5)
	}
	for k, v := range r.Variants {
		path := ""
		for i := range v.Loads {
			at := fmt.Sprintf("%.1f %.1f", x(v.Loads[i].Online), y(of(&v.Loads[i])))
			path += map[bool]string{true: "M", false: "L"}[i == 0] + at
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x(v.Loads[i].Online), y(of(&v.Loads[i])), lineColours[k])
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", path, lineColours[k])
	}
}

// niceStep returns a round number of which about five are the most.
func niceStep(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(most, 1)/5)))
	for _, n := range []float64{1, 2, 5} {
		if most <= 5*n*unit {
			return n * unit
		}
	}
	return 10 * unit
}
