package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// table is what became of each contestant, in Markdown.
func table(courses []*course) string {
	var b strings.Builder
	b.WriteString("| | goodput, all of the capacity | two fifths of it | all again |")
	for _, class := range classes {
		fmt.Fprintf(&b, " %s served |", class.name)
	}
	b.WriteString(" critical, p99 |\n" + strings.Repeat("| --- ", 5+len(classes)) + "|\n")
	for _, c := range courses {
		fmt.Fprintf(&b, "| %s |", c.name)
		for phase := range 3 {
			fmt.Fprintf(&b, " %.0f %% |", 100*c.goodput(phase))
		}
		for class := range classes {
			fmt.Fprintf(&b, " %.1f %% |", 100*c.served(class))
		}
		fmt.Fprintf(&b, " %d ms |\n", c.p99()/time.Millisecond)
	}
	return b.String()
}

// Where the table stands on the page.
const (
	tableBegins = "<!-- written by make overload -->\n\n"
	tableEnds   = "\n<!-- until here -->\n"
)

// write writes the plot, and puts the table into the page.
func write(docs, text string, picture []byte) error {
	page := filepath.Join(docs, "overload.md")
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := bytes.Cut(content, []byte(tableBegins))
	_, after, ends := bytes.Cut(rest, []byte(tableEnds))
	if !begins || !ends {
		return errors.New(page + " lacks the place for the table: write the lines " + strings.TrimSpace(tableBegins) +
			" and " + strings.TrimSpace(tableEnds))
	}
	whole := string(before) + tableBegins + text + tableEnds + string(after)
	if err := os.WriteFile(page, []byte(whole), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "overload.svg"), picture, 0o644)
}
