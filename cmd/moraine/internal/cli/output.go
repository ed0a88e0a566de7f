package cli

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

// PrintJSON writes v as one line.
func PrintJSON(w io.Writer, v any) error {
	return json.NewEncoder(w).Encode(v)
}

// PrintTable writes rows under a header, for people.
func PrintTable(w io.Writer, header table.Row, rows []table.Row) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	style.Box.PaddingLeft = ""
	style.Box.PaddingRight = "  "
	t.SetStyle(style)
	t.AppendHeader(header)
	t.AppendRows(visibleRows(rows))
	t.Render()
}

// List prints items as a table, or as JSON, one object a line.
func List[T any](env *Env, items []T, header table.Row, row func(T) table.Row) error {
	if env.Global.JSON {
		for _, it := range items {
			if err := PrintJSON(env.Out, it); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([]table.Row, len(items))
	for i, it := range items {
		rows[i] = row(it)
	}
	PrintTable(env.Out, header, rows)
	return nil
}

// Size writes a number of bytes in IEC units.
func Size(n uint64) string { return humanize.IBytes(n) }

// ParseSize reads 4MiB, 1GiB, 512.
func ParseSize(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil {
		return 0, UsageError("size %q: write a number of bytes, or a number with a unit such as 4MiB", s)
	}
	return n, nil
}

// SizeFlag is a flag that takes a size.
type SizeFlag uint64

// String implements pflag.Value. It is empty for 0, so that --help shows no default.
func (s *SizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return Size(uint64(*s))
}

// Set implements pflag.Value.
func (s *SizeFlag) Set(v string) error {
	n, err := ParseSize(v)
	*s = SizeFlag(n)
	return err
}

// Type implements pflag.Value.
func (s *SizeFlag) Type() string { return "SIZE" }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Bar is a progress bar on standard error. It shows nothing where that is not a terminal,
// or with --json.
type Bar struct {
	writer  progress.Writer
	tracker *progress.Tracker
	done    chan struct{}
}

// StartBar shows progress of total bytes (0: unknown) under a message.
func (env *Env) StartBar(message string, total int64) *Bar {
	if env.Global.JSON || !isTerminal(env.Err) {
		return nil
	}
	b := &Bar{writer: progress.NewWriter(), done: make(chan struct{})}
	b.tracker = &progress.Tracker{Message: message, Total: total, Units: progress.UnitsBytes}
	b.writer.SetOutputWriter(env.Err)
	b.writer.SetUpdateFrequency(100 * time.Millisecond)
	b.writer.SetAutoStop(false)
	b.writer.AppendTracker(b.tracker)
	go func() {
		defer close(b.done)
		b.writer.Render()
	}()
	return b
}

// Plain makes the bar count things, not bytes. It may be called on nil.
func (b *Bar) Plain() {
	if b != nil {
		b.tracker.Units = progress.UnitsDefault
	}
}

// Add counts n more bytes. It may be called on nil.
func (b *Bar) Add(n int64) {
	if b != nil {
		b.tracker.Increment(n)
	}
}

// Finish ends the bar, marked as failed where err is not nil.
func (b *Bar) Finish(err error) {
	if b == nil {
		return
	}
	if err != nil {
		b.tracker.MarkAsErrored()
	} else {
		b.tracker.MarkAsDone()
	}
	// Stop has no effect before Render has begun, in its goroutine. So it is repeated.
	for {
		b.writer.Stop()
		select {
		case <-b.done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Note prints a line for people, but not with --json.
func (env *Env) Note(format string, args ...any) {
	if !env.Global.JSON {
		fmt.Fprintf(env.Out, format+"\n", visibleArgs(args)...)
	}
}

// SetDone sets how many bytes are done in all. A caller may call it on nil.
func (b *Bar) SetDone(n int64) {
	if b != nil {
		b.tracker.SetValue(n)
	}
}

// Log prints a line, above the bar where there is one.
func (b *Bar) Log(w io.Writer, line string) {
	line = Visible(line)
	if b == nil {
		fmt.Fprintln(w, line)
		return
	}
	b.writer.Log("%s", line)
}

// SetTotal sets how many bytes there are, which may change. A caller may call it on nil.
func (b *Bar) SetTotal(total int64) {
	if b != nil {
		b.tracker.UpdateTotal(total)
	}
}
