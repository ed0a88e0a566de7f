package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/progress"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/sys/unix"
)

// printJSON writes v as one line.
func printJSON(w io.Writer, v any) error {
	return json.NewEncoder(w).Encode(v)
}

// printTable writes rows under a header, for people.
func printTable(w io.Writer, header table.Row, rows []table.Row) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	t.SetStyle(style)
	t.AppendHeader(header)
	t.AppendRows(rows)
	t.Render()
}

// list prints items as a table, or as JSON, one object a line.
func list[T any](a *app, items []T, header table.Row, row func(T) table.Row) error {
	if a.global.json {
		for _, it := range items {
			if err := printJSON(a.out, it); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([]table.Row, len(items))
	for i, it := range items {
		rows[i] = row(it)
	}
	printTable(a.out, header, rows)
	return nil
}

// size writes a number of bytes in IEC units.
func size(n uint64) string { return humanize.IBytes(n) }

// parseSize reads 4MiB, 1GiB, 512.
func parseSize(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil {
		return 0, usageError("size %q: write a number of bytes, or a number with a unit such as 4MiB", s)
	}
	return n, nil
}

// sizeFlag is a flag that takes a size.
type sizeFlag uint64

func (s *sizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return size(uint64(*s))
}

func (s *sizeFlag) Set(v string) error {
	n, err := parseSize(v)
	*s = sizeFlag(n)
	return err
}

func (s *sizeFlag) Type() string { return "SIZE" }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// bar is a progress bar on standard error. It shows nothing where that is not a terminal,
// or with --json.
type bar struct {
	writer  progress.Writer
	tracker *progress.Tracker
	done    chan struct{}
}

// startBar shows progress of total bytes (0: unknown) under a message.
func (a *app) startBar(message string, total int64) *bar {
	if a.global.json || !isTerminal(a.err) {
		return nil
	}
	b := &bar{writer: progress.NewWriter(), done: make(chan struct{})}
	b.tracker = &progress.Tracker{Message: message, Total: total, Units: progress.UnitsBytes}
	b.writer.SetOutputWriter(a.err)
	b.writer.SetUpdateFrequency(100 * time.Millisecond)
	b.writer.SetAutoStop(false)
	b.writer.AppendTracker(b.tracker)
	go func() {
		defer close(b.done)
		b.writer.Render()
	}()
	return b
}

// plain makes the bar count things, not bytes. It may be called on nil.
func (b *bar) plain() {
	if b != nil {
		b.tracker.Units = progress.UnitsDefault
	}
}

// add counts n more bytes. It may be called on nil.
func (b *bar) add(n int64) {
	if b != nil {
		b.tracker.Increment(n)
	}
}

// finish ends the bar, marked as failed where err is not nil.
func (b *bar) finish(err error) {
	if b == nil {
		return
	}
	if err != nil {
		b.tracker.MarkAsErrored()
	} else {
		b.tracker.MarkAsDone()
	}
	b.writer.Stop()
	<-b.done
}

// note prints a line for people, but not with --json.
func (a *app) note(format string, args ...any) {
	if !a.global.json {
		fmt.Fprintf(a.out, format+"\n", args...)
	}
}

// set sets how many bytes are done in all. A caller may call it on nil.
func (b *bar) set(n int64) {
	if b != nil {
		b.tracker.SetValue(n)
	}
}

// log prints a line, above the bar where there is one.
func (b *bar) log(w io.Writer, line string) {
	if b == nil {
		fmt.Fprintln(w, line)
		return
	}
	b.writer.Log("%s", line)
}

// of sets how many bytes there are, which may change. A caller may call it on nil.
func (b *bar) of(total int64) {
	if b != nil {
		b.tracker.UpdateTotal(total)
	}
}
