package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// Measures of the plot in pixels.
const (
	plotLeft, plotWidth   = 70, 800
	panelTop, panelHeight = 40, 170
	panelEvery            = 240
)

// dashed is the line of the service's capacity.
const dashed = `stroke-dasharray="5 3"`

var colours = []string{"#a0303c", "#3b6fb5", "#4f9d5a", "#e0a030"}

// plot draws for each contestant how many requests of each class are answered in time, the classes
// stacked, and the service's capacity.
func plot(courses []*course) []byte {
	d := &figures.Drawing{}
	height := float64(len(courses)*panelEvery + 40)
	for i, c := range courses {
		c.panel(d, float64(i*panelEvery+panelTop))
	}
	for i, class := range classes {
		d.Swatch(plotLeft+float64(i)*110, height-26, colours[i], class.name)
	}
	d.Line(figures.Dark, dashed, figures.Point{X: plotLeft + 450, Y: height - 20},
		figures.Point{X: plotLeft + 480, Y: height - 20})
	d.Text(plotLeft+488, height-15, "", "what the service can give")
	return d.SVG(960, height)
}

// panel draws one contestant.
func (c *course) panel(d *figures.Drawing, top float64) {
	seconds := int(3 * c.phase / time.Second)
	const most = capacity * 5 / 4
	at := func(second, n int) figures.Point {
		return figures.Point{
			X: plotLeft + float64(second)*plotWidth/float64(seconds),
			Y: top + panelHeight - float64(min(n, most))*panelHeight/most,
		}
	}
	d.Text(plotLeft, top-14, `font-weight="bold"`, c.name+": requests answered in time, a second")
	for n := 0; n <= most; n += capacity / 4 {
		d.Line("#d8d8d8", "", at(0, n), at(seconds, n))
		d.Text(plotLeft-8, at(0, n).Y+4, `text-anchor="end"`, fmt.Sprint(n))
	}
	below := make([]int, seconds)
	for class := range classes {
		var upper, lower []figures.Point
		for second := range seconds {
			low := below[second]
			below[second] += c.good[class][second]
			for _, edge := range []int{second, second + 1} {
				upper, lower = append(upper, at(edge, below[second])), append(lower, at(edge, low))
			}
		}
		slices.Reverse(lower)
		d.Area(colours[class], append(upper, lower...)...)
	}
	third, low := seconds/3, capacity*fewer/places
	d.Line(figures.Dark, dashed, at(0, capacity), at(third, capacity), at(third, low), at(2*third, low),
		at(2*third, capacity), at(seconds, capacity))
	for second := 0; second <= seconds; second += max(seconds/9, 1) {
		d.Text(at(second, 0).X, top+panelHeight+18, `text-anchor="middle"`, fmt.Sprintf("%d s", second))
	}
}
