package figures

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Dark is the colour of text.
const Dark = "#202020"

// Drawing is a picture in SVG; the zero value is empty. Coordinates are pixels from the upper left
// corner.
type Drawing struct{ b strings.Builder }

// Point is a place in a drawing.
type Point struct{ X, Y float64 }

// pixels writes a coordinate with at most one digit after the point.
func pixels(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Text writes a text whose line is at y. Its style is more attributes, or empty.
func (d *Drawing) Text(x, y float64, style, text string) {
	fmt.Fprintf(&d.b, "<text x=\"%s\" y=\"%s\" fill=\"%s\"%s>%s</text>\n", pixels(x), pixels(y), Dark, spaced(style),
		html.EscapeString(text))
}

func spaced(style string) string {
	if style == "" {
		return ""
	}
	return " " + style
}

// Rect fills a rectangle.
func (d *Drawing) Rect(x, y, width, height float64, colour string) {
	fmt.Fprintf(&d.b, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"%s\"/>\n",
		pixels(x), pixels(y), pixels(width), pixels(height), colour)
}

// Dot draws a circle.
func (d *Drawing) Dot(at Point, stroke, fill string) {
	fmt.Fprintf(&d.b, "<circle cx=\"%s\" cy=\"%s\" r=\"4\" stroke=\"%s\" fill=\"%s\"/>\n",
		pixels(at.X), pixels(at.Y), stroke, fill)
}

// Line draws a line through points. Its style is the colour, and more attributes.
func (d *Drawing) Line(colour, style string, points ...Point) {
	fmt.Fprintf(&d.b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"%s/>\n",
		joined(points), colour, spaced(style))
}

// Area fills the area that points enclose.
func (d *Drawing) Area(colour string, points ...Point) {
	fmt.Fprintf(&d.b, "<polygon points=\"%s\" fill=\"%s\"/>\n", joined(points), colour)
}

func joined(points []Point) string {
	var all []string
	for _, p := range points {
		all = append(all, pixels(p.X)+","+pixels(p.Y))
	}
	return strings.Join(all, " ")
}

// Swatch draws a square of a colour, and beside it the name of the things in that colour.
func (d *Drawing) Swatch(x, y float64, colour, name string) {
	d.Rect(x, y, 12, 12, colour)
	d.Text(x+20, y+10, "", name)
}

// SVG returns the drawing on a white sheet.
func (d *Drawing) SVG(width, height float64) []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" `+
		`font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="#ffffff"/>
%s</svg>
`, pixels(width), pixels(height), d.b.String())
}
