package main

import (
	"fmt"
	"math"

	"github.com/weir-proxy/weir/test/figures"
)

// Measures of the plots in pixels.
const (
	plotWidth = 960
	nameWidth = 370
	barHeight = 16
	rowHeight = 24
	headSpace = 46
	textSpace = 150

	curveLeft   = 70
	curveRight  = 530
	curveTop    = 50
	curveBottom = 350
	curveHeight = 400
)

const (
	envoyColour = "#3b6fb5"
	otherColour = "#e08a3c"
	gridColour  = "#d0d0d0"
)

var curveColours = []string{envoyColour, otherColour, "#4f9d5a", "#a0506e"}

// head writes the first line of a scene's drawing.
func head(d *figures.Drawing, s scene, y float64) {
	d.Text(10, y, `font-weight="bold"`, "Processor time added to a request, µs: "+stages[s].title)
}

// plot draws the cost that each contestant adds to a request, of Envoy and of all other processes,
// with the least and the most of all rounds as a line.
func (r *report) plot() []byte {
	d, y := &figures.Drawing{}, 10.0
	for _, s := range scenes() {
		if stages[s].perTurn > 0 {
			y = r.plotScene(d, s, y)
		}
	}
	return d.SVG(plotWidth, y)
}

func (r *report) plotScene(d *figures.Drawing, s scene, y float64) float64 {
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
	head(d, s, y+16)
	d.Swatch(plotWidth-220, y+6, envoyColour, "Envoy")
	d.Swatch(plotWidth-145, y+6, otherColour, "other processes")
	y += headSpace
	for _, c := range bars {
		r.plotBar(d, c, y, (plotWidth-nameWidth-textSpace)/most)
		y += rowHeight
	}
	return y + 10
}

func (r *report) plotBar(d *figures.Drawing, c contestant, y, scale float64) {
	all := r.added(c)
	others := r.of(c, func(f reading) float64 { return f.OtherCPU }).Median
	envoy := max(0, all.Median-others)
	x := func(v float64) float64 { return nameWidth + max(0, v)*scale }
	d.Text(nameWidth-8, y+13, `text-anchor="end"`, c.Title)
	d.Rect(nameWidth, y, envoy*scale, barHeight, envoyColour)
	d.Rect(x(envoy), y, others*scale, barHeight, otherColour)
	middle := y + barHeight/2
	d.Line(figures.Dark, "", figures.Point{X: x(all.Min), Y: middle}, figures.Point{X: x(all.Max), Y: middle})
	d.Text(x(all.Max)+8, y+13, "", fmt.Sprintf("%.1f", all.Median))
}

// axis maps the logarithm of a value between low and high to pixels.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	share := math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	return a.from + share*(a.to-a.from)
}

// plotCurve draws the cost that contestants add to a request at each rate, with the least and the
// most of all rounds, on logarithmic axes. A rate that was not reached is a hollow point.
func (r *report) plotCurve() []byte {
	most := 20.0
	var all []contestant
	for _, c := range r.in(curve) {
		if r.compares(c) {
			all = append(all, c)
			for _, rate := range curveRates {
				most = max(most, r.costAt(c, rate).Max)
			}
		}
	}
	x := axis{curveRates[0], curveRates[len(curveRates)-1], curveLeft, curveRight}
	y := axis{10, math.Pow(10, math.Ceil(math.Log10(most))), curveBottom, curveTop}
	d := &figures.Drawing{}
	head(d, curve, 26)
	for v := y.low; v <= y.high*1.01; v *= 10 {
		d.Line(gridColour, "", figures.Point{X: curveLeft, Y: y.at(v)}, figures.Point{X: curveRight, Y: y.at(v)})
		d.Text(curveLeft-8, y.at(v)+4, `text-anchor="end"`, fmt.Sprintf("%.0f", v))
	}
	for _, rate := range curveRates {
		d.Line(gridColour, "", figures.Point{X: x.at(rate), Y: curveTop}, figures.Point{X: x.at(rate), Y: curveBottom})
		d.Text(x.at(rate), curveBottom+20, `text-anchor="middle"`, fmt.Sprintf("%.0f/s", rate))
	}
	for i, c := range all {
		colour := curveColours[i%len(curveColours)]
		r.plotLine(d, c, x, y, colour)
		d.Swatch(curveRight+30, curveTop+24*float64(i), colour, c.Title)
	}
	return d.SVG(plotWidth, curveHeight)
}

// plotLine draws the line of a contestant.
func (r *report) plotLine(d *figures.Drawing, c contestant, x, y axis, colour string) {
	var points []figures.Point
	for _, rate := range curveRates {
		s := r.costAt(c, rate)
		p := figures.Point{X: x.at(rate), Y: y.at(s.Median)}
		points = append(points, p)
		fill := colour
		if _, missed := r.misses(c, rate); missed {
			fill = "#ffffff"
		}
		d.Line(colour, "", figures.Point{X: p.X, Y: y.at(s.Min)}, figures.Point{X: p.X, Y: y.at(s.Max)})
		d.Dot(p, colour, fill)
	}
	d.Line(colour, "", points...)
}
