package main

import (
	"fmt"
	"html"
	"strings"
)

// Measures of the plot in pixels.
const (
	plotWidth = 960
	nameWidth = 370
	barHeight = 16
	rowHeight = 24
	headSpace = 46
	textSpace = 150
)

const (
	envoyColour = "#3b6fb5"
	otherColour = "#e08a3c"
)

// frame is a drawing of that height.
func frame(height int, drawn string) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="#ffffff"/>
%s</svg>
`, plotWidth, height, drawn)
}

// heading is the first line of a scene's drawing.
func heading(s scene, y int) string {
	return fmt.Sprintf(`<text x="10" y="%d" font-weight="bold" fill="#202020">`+
		`Processor time added to a request, µs: %s</text>
`, y, html.EscapeString(stages[s].title))
}

// swatch is a square of a colour, and beside it what the colour stands for.
func swatch(x, y int, colour, name string) string {
	return fmt.Sprintf(`<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`+
		`<text x="%d" y="%d" fill="#202020">%s</text>
`, x, y, colour, x+20, y+10, html.EscapeString(name))
}

// plot draws what each contestant adds to a request: Envoy's part and that of all other processes,
// with the least and the most of all rounds as a line.
func (r *report) plot() []byte {
	var b strings.Builder
	y := 10
	for _, s := range scenes() {
		if stages[s].perTurn > 0 {
			y = r.plotScene(&b, s, y)
		}
	}
	return frame(y, b.String())
}

func (r *report) plotScene(b *strings.Builder, s scene, y int) int {
	var bars []contestant
	most := 0.0
	for _, c := range r.in(s) {
		if r.compares(c) {
			bars = append(bars, c)
			most = max(most, r.added(c).Max)
		}
	}
	if len(bars) == 0 || most <= 0 {
		return y
	}
	scale := (plotWidth - nameWidth - textSpace) / most
	b.WriteString(heading(s, y+16))
	b.WriteString(swatch(plotWidth-220, y+6, envoyColour, "Envoy"))
	b.WriteString(swatch(plotWidth-145, y+6, otherColour, "other processes"))
	y += headSpace
	for _, c := range bars {
		r.plotBar(b, c, y, scale)
		y += rowHeight
	}
	return y + 10
}

func (r *report) plotBar(b *strings.Builder, c contestant, y int, scale float64) {
	all := r.added(c)
	others := r.of(c, func(f figures) float64 { return f.OtherCPU }).Median
	envoy := max(0, all.Median-others)
	x := func(v float64) float64 { return nameWidth + max(0, v)*scale }
	middle := y + barHeight/2
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end" fill="#202020">%s</text>
<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+
		`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>
<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#202020"/><text x="%.1f" y="%d" fill="#202020">%.1f</text>
`, nameWidth-8, y+13, html.EscapeString(c.Title),
		nameWidth, y, envoy*scale, barHeight, envoyColour, x(envoy), y, others*scale, barHeight, otherColour,
		x(all.Min), middle, x(all.Max), middle, x(all.Max)+8, y+13, all.Median)
}
