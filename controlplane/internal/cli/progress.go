package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// barWidth is the width of a progress bar in characters.
const barWidth = 30

// drawBar draws a part of a whole.
func drawBar(part, whole int) string {
	full := 0
	if whole > 0 {
		full = part * barWidth / whole
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}

// progress shows on a terminal how much of a file is done.
type progress struct {
	out  io.Writer // nil: no terminal
	name string
	size int64
	// done are bytes, shown is the percentage that stands there.
	done, shown int64
}

// newProgress makes a bar on out, if that is a terminal.
func newProgress(out io.Writer, of *os.File) *progress {
	p := &progress{name: of.Name()}
	if info, err := of.Stat(); err == nil && isTerminal(out) {
		p.out, p.size = out, info.Size()
	}
	return p
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// at notes that done bytes are done.
func (p *progress) at(done int64) {
	p.done = done
	if percent := min(done*100/max(p.size, 1), 100); p.out != nil && percent > p.shown {
		p.shown = percent
		fmt.Fprintf(p.out, "\r%s %3d%% %s", drawBar(int(percent), 100), percent, p.name)
	}
}

// end takes the bar away.
func (p *progress) end() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// reading is a reader whose progress is shown.
type reading struct {
	io.Reader
	*progress
}

// Read implements io.Reader.
func (r reading) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.at(r.done + int64(n))
	return n, err
}
