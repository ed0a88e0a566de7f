package mountkills_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// appends: both programs append records to one file. What an fsync or a close has confirmed is there
// once and whole.
var appends = operation{
	name:    "append",
	prepare: func(dir string, _ int64) error { return os.WriteFile(filepath.Join(dir, "log"), nil, 0o644) },
	program: func(p *program) (func() error, func() error, error) {
		a := &appender{program: p}
		if err := a.open(); err != nil {
			return nil, nil, err
		}
		return a.step, func() error { a.sync("close", a.f.Close); return nil }, nil
	},
	check: checkAppends,
}

// appender is the program.
type appender struct {
	*program
	f   *os.File
	seq int64 // of the newest record
}

func (a *appender) open() (err error) {
	a.f, err = os.OpenFile(a.at("log"), os.O_WRONLY|os.O_APPEND, 0)
	return err
}

func (a *appender) step() error {
	switch n := a.r.IntN(20); {
	case n < 14:
		a.seq++
		rec := record(a.Prog, a.seq, a.r.IntN(int(a.Size)))
		_ = a.report(event{Call: "append", Low: a.seq, High: a.seq, Changes: true, Writes: true}, func(*event) error {
			n, err := a.f.Write(rec)
			if n > 0 && n < len(rec) {
				return wrongBytes(fmt.Sprintf("%d of %d bytes were appended: %v", n, len(rec), err))
			}
			return err
		})
	case n < 17:
		a.sync("fsync", a.f.Sync)
	case n < 18:
		a.sync("close", a.f.Close)
		return a.report(event{Call: "open"}, func(*event) error { return a.open() })
	default:
		_ = a.report(event{Call: "scan"}, func(e *event) error {
			seen, err := scan(a.at("log"))
			if err == nil {
				e.High = seen.newest[1-a.Prog]
			}
			return err
		})
	}
	return nil
}

// sync confirms all records up to the newest one, or some since the confirmation before may be lost.
func (a *appender) sync(name string, call func() error) {
	_ = a.report(event{Call: name, Low: a.seq, High: a.seq, Writes: true}, func(*event) error { return call() })
}

// record is a line with its length and a checksum.
func record(prog int, seq int64, filler int) []byte {
	body := fmt.Sprintf("%d %d %s", prog, seq, strings.Repeat(string(rune('a'+seq%26)), filler))
	return fmt.Appendf(nil, "%08x %d %s\n", crc32.ChecksumIEEE([]byte(body)), len(body), body)
}

// scanned is what a log has.
type scanned struct {
	count  [2]map[int64]int
	newest [2]int64
}

// scan reads a log. A line that is no record is wrong.
func scan(name string) (*scanned, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	s := &scanned{count: [2]map[int64]int{{}, {}}}
	for line := range bytes.Lines(data) {
		var sum uint32
		var n, prog int
		var seq int64
		head, body, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		length, body, _ := strings.Cut(body, " ")
		_, err1 := fmt.Sscanf(head, "%x", &sum)
		_, err2 := fmt.Sscanf(length, "%d", &n)
		_, err3 := fmt.Sscanf(body, "%d %d", &prog, &seq)
		if err1 != nil || err2 != nil || err3 != nil || n != len(body) || crc32.ChecksumIEEE([]byte(body)) != sum || prog < 0 || prog > 1 {
			return s, wrongBytes(fmt.Sprintf("a torn record of %d bytes: %.60q", len(line), line))
		}
		s.count[prog][seq]++
		if seq <= s.newest[prog] {
			return s, wrongBytes(fmt.Sprintf("record %d of mount %d comes after %d", seq, prog, s.newest[prog]))
		}
		s.newest[prog] = seq
	}
	return s, nil
}

// checkAppends compares the log, as each mount shows it, with what was confirmed.
func checkAppends(c *cell) (wrong []string) {
	var logs [2]*scanned
	for i, dir := range c.dirs {
		var err error
		if logs[i], err = scan(filepath.Join(dir, "log")); err != nil {
			wrong = append(wrong, fmt.Sprintf("the log on mount %d: %v", i, err))
			if logs[i] == nil {
				return wrong
			}
		}
	}
	for prog, events := range c.events {
		certain := certainOf(events)
		for _, e := range events {
			if e.Call == "append" && certain[e.High] {
				for i, l := range logs {
					if n := l.count[prog][e.High]; n != 1 {
						wrong = append(wrong, fmt.Sprintf("mount %d has record %d of mount %d, appended %v after the fault, %d times",
							i, e.High, prog, time.Duration(e.End-c.struck), n))
					}
				}
			}
		}
		if len(certain) == 0 {
			wrong = append(wrong, fmt.Sprintf("no record of mount %d was confirmed", prog))
		}
		wrong = append(wrong, c.checkScans(prog, certain)...)
	}
	return wrong
}

// certainOf are the records that were confirmed.
func certainOf(events []event) map[int64]bool {
	certain, waiting := map[int64]bool{}, []int64(nil)
	for _, e := range events {
		switch {
		case e.Call == "append" && e.Err == "":
			waiting = append(waiting, e.High)
		case e.Call == "fsync" || e.Call == "close":
			for _, seq := range waiting {
				certain[seq] = e.Err == ""
			}
			waiting = nil
		}
	}
	return certain
}

// checkScans: a scan shows the records that the other program had confirmed before.
func (c *cell) checkScans(prog int, certain map[int64]bool) (wrong []string) {
	for _, s := range c.of(1-prog, "scan") {
		if s.Err != "" || s.Wrong != "" {
			continue
		}
		newest := int64(0)
		for _, e := range c.events[prog] {
			if (e.Call == "fsync" || e.Call == "close") && e.Err == "" && e.End < s.Start && certain[e.High] {
				newest = max(newest, e.High)
			}
		}
		if s.High < newest {
			wrong = append(wrong, fmt.Sprintf("mount %d, %v after the fault, saw record %d of mount %d as the newest, and not %d", 1-prog, time.Duration(s.Start-c.struck), s.High, prog, newest))
		}
	}
	return wrong
}
