package main

import (
	"fmt"
	"math"
	"strings"
)

// Measures of the curve's plot in pixels.
const (
	curveLeft   = 70
	curveRight  = 530
	curveTop    = 50
	curveBottom = 350
	curveHeight = 400
)

var curveColours = []string{"#3b6fb5", "#e08a3c", "#4f9d5a", "#a0506e"}

// axis maps the logarithm of a value between low and high to pixels.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	share := math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	return a.from + share*(a.to-a.from)
}

// plotCurve draws what contestants add to a request at each rate, with the least and the most of
// all rounds, on logarithmic axes. A rate that was not reached is a hollow point.
func (r *report) plotCurve() []byte {
	most := 20.0
	for _, c := range r.in(curve) {
		for _, rate := range curveRates {
			if r.compares(c) {
				most = max(most, r.costAt(c, rate).Max)
			}
		}
	}
	x := axis{curveRates[0], curveRates[len(curveRates)-1], curveLeft, curveRight}
	y := axis{10, math.Pow(10, math.Ceil(math.Log10(most))), curveBottom, curveTop}
	var b strings.Builder
	b.WriteString(heading(curve, 26))
	for v := y.low; v <= y.high*1.01; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#d0d0d0"/>`+
			`<text x="%d" y="%.1f" text-anchor="end" fill="#202020">%.0f</text>
`, curveLeft, y.at(v), curveRight, y.at(v), curveLeft-8, y.at(v)+4, v)
	}
	for _, rate := range curveRates {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#d0d0d0"/>`+
			`<text x="%.1f" y="%d" text-anchor="middle" fill="#202020">%.0f/s</text>
`, x.at(rate), curveTop, x.at(rate), curveBottom, x.at(rate), curveBottom+20, rate)
	}
	line := 0
	for _, c := range r.in(curve) {
		if r.compares(c) {
			r.plotLine(&b, c, x, y, line)
			line++
		}
	}
	return frame(curveHeight, b.String())
}

// plotLine draws the line of a contestant, with its name beside the plot.
func (r *report) plotLine(b *strings.Builder, c contestant, x, y axis, line int) {
	colour := curveColours[line%len(curveColours)]
	var points []string
	for _, rate := range curveRates {
		s := r.costAt(c, rate)
		px, py := x.at(rate), y.at(s.Median)
		points = append(points, fmt.Sprintf("%.1f,%.1f", px, py))
		fill := colour
		if _, missed := r.misses(c, rate); missed {
			fill = "#ffffff"
		}
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+
			`<circle cx="%.1f" cy="%.1f" r="4" stroke="%s" fill="%s"/>
`, px, y.at(s.Min), px, y.at(s.Max), colour, px, py, colour, fill)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s"/>
`, strings.Join(points, " "), colour)
	b.WriteString(swatch(curveRight+30, curveTop+24*line, colour, c.Title))
}
