package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// progress is a bar that shows on a terminal how much of a file has been read.
type progress struct {
	out   io.Writer // nil: nobody looks
	total int64
}

// newProgress makes a bar on out if that is a terminal.
func newProgress(out io.Writer, of *os.File) *progress {
	p := &progress{}
	if terminal, ok := out.(*os.File); ok {
		if info, err := terminal.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.out = out
		}
	}
	if info, err := of.Stat(); err == nil {
		p.total = info.Size()
	}
	return p
}

const barWidth = 40

// show draws the bar: how much of the total is read, and a count.
func (p *progress) show(read int64, count int) {
	if p.out == nil || p.total <= 0 {
		return
	}
	part := min(float64(read)/float64(p.total), 1)
	full := int(part * barWidth)
	fmt.Fprintf(p.out, "\r[%s%s] %3.0f %%  %d", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), part*100, count)
}

// end takes the bar away.
func (p *progress) end() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r"+strings.Repeat(" ", barWidth+24)+"\r")
	}
}
