package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// Measures of the plot in pixels.
const (
	plotLeft, plotWidth   = 70, 800
	panelTop, panelHeight = 40, 170
	panelEvery            = 240
)

var colours = []string{"#a0303c", "#3b6fb5", "#4f9d5a", "#e0a030"}

// plot draws for each contestant how many requests of each class are answered in time, one class
// above the other, and what the service can give.
func plot(courses []*course) []byte {
	var b strings.Builder
	height := len(courses)*panelEvery + 40
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 %d" font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, height)
	for i, c := range courses {
		c.panel(&b, i*panelEvery+panelTop)
	}
	for i, class := range classes {
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d" fill="#202020">%s</text>
`, plotLeft+i*110, height-26, colours[i], plotLeft+i*110+18, height-15, class.name)
	}
	fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#202020" stroke-dasharray="5 3"/><text x="%d" y="%d" fill="#202020">what the service can give</text>
</svg>
`, plotLeft+450, height-20, plotLeft+480, height-20, plotLeft+488, height-15)
	return []byte(b.String())
}

// panel draws one contestant.
func (c *course) panel(b *strings.Builder, top int) {
	seconds := int(3 * c.phase / time.Second)
	const most = capacity * 5 / 4
	x := func(second int) float64 { return plotLeft + float64(second)*plotWidth/float64(seconds) }
	y := func(n int) float64 { return float64(top+panelHeight) - float64(min(n, most))*panelHeight/most }
	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold" fill="#202020">%s: requests answered in time, a second</text>
`, plotLeft, top-14, html.EscapeString(c.name))
	for n := 0; n <= most; n += capacity / 4 {
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#d8d8d8"/><text x="%d" y="%.1f" text-anchor="end" fill="#202020">%d</text>
`, plotLeft, y(n), plotLeft+plotWidth, y(n), plotLeft-8, y(n)+4, n)
	}
	below := make([]int, seconds)
	for class := range classes {
		var upper, lower []string
		for second := range seconds {
			low := below[second]
			below[second] += c.good[class][second]
			for _, at := range []int{second, second + 1} {
				upper = append(upper, fmt.Sprintf("%.1f,%.1f", x(at), y(below[second])))
				lower = append([]string{fmt.Sprintf("%.1f,%.1f", x(at), y(low))}, lower...)
			}
		}
		fmt.Fprintf(b, `<polygon points="%s %s" fill="%s"/>
`, strings.Join(upper, " "), strings.Join(lower, " "), colours[class])
	}
	third, low := seconds/3, capacity*fewer/places
	fmt.Fprintf(b, `<polyline points="%.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f" fill="none" stroke="#202020" stroke-dasharray="5 3"/>
`, x(0), y(capacity), x(third), y(capacity), x(third), y(low), x(2*third), y(low), x(2*third), y(capacity), x(seconds), y(capacity))
	for second := 0; second <= seconds; second += max(seconds/9, 1) {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#202020">%d s</text>
`, x(second), top+panelHeight+18, second)
	}
}
