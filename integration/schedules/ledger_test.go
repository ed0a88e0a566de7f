package schedules_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ledgerVariable names the directory of the ledgers; by default it is one of the
// user's cache.
const ledgerVariable = "MORAINE_TEST_LEDGER"

// ledger is the record of all schedules of these sources, over all runs: a file
// outside the sources, one line a schedule, named for a checksum of them.
type ledger struct {
	path string
	done map[uint64]entry
}

// entry is a finished schedule, and what was wrong then, if anything was.
type entry struct {
	Seed      uint64
	Seconds   float64
	Fired     map[kind]int
	Overlaps  int
	Reads     int64
	ReadBytes int64
	Acked     int64 // bytes
	Steps     int
	Evicted   int64 // files, to the bucket
	Rewritten int   // stripes that passes chose to rewrite
	Packed    int   // small files that passes chose to pack
	Failed    int64 // operations
	InMemory  int64 // files that were only in memory when they were acknowledged
	LostNamed int   // of them, those whose bytes the cluster reports as lost

	Wrong []string `json:",omitempty"` // bytes that were lost, or served wrong
	Error string   `json:",omitempty"` // why it failed otherwise
}

// openLedger reads the ledger of the sources below root.
func openLedger(root string) (*ledger, error) {
	sum, err := sumSources(root)
	if err != nil {
		return nil, err
	}
	dir := os.Getenv(ledgerVariable)
	if dir == "" {
		if dir, err = os.UserCacheDir(); err != nil {
			return nil, err
		}
		dir = filepath.Join(dir, "moraine-schedules")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l := &ledger{path: filepath.Join(dir, sum[:16]+".jsonl"), done: map[uint64]entry{}}
	f, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var e entry
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", l.path, err)
		}
		l.done[e.Seed] = e
	}
	return l, nil
}

// overlapping counts the schedules with two concurrent faults.
func (l *ledger) overlapping() (n int) {
	for _, e := range l.done {
		if e.Overlaps > 0 {
			n++
		}
	}
	return n
}

// add appends a schedule in one write, so that several runs may add concurrently.
func (l *ledger) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// sumSources checksums everything below root from which the binaries are made: two
// trees with one checksum behave the same, whatever their documents say.
func sumSources(root string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "docs") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".go" && name != "go.mod" && name != "go.sum" {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		one := sha256.New()
		if _, err := io.Copy(one, f); err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %x\n", rel, one.Sum(nil))
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

// The record adds up over runs of one tree, and not of another one.
func TestLedger(t *testing.T) {
	t.Setenv(ledgerVariable, t.TempDir())
	root := t.TempDir()
	source := filepath.Join(root, "a.go")
	if err := os.WriteFile(source, []byte("package a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		t.Helper()
		l, err := openLedger(root)
		if err != nil {
			t.Fatal(err)
		}
		return len(l.done)
	}
	for i := range uint64(3) {
		l, err := openLedger(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.add(entry{Seed: i, Fired: map[kind]int{kills: 2}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(); n != 3 {
		t.Errorf("%d are written down", n)
	}
	l, err := openLedger(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.add(entry{Seed: 3, Wrong: []string{"a block"}}); err != nil {
		t.Fatal(err)
	}
	if l, err = openLedger(root); err != nil || !strings.Contains(total(l), "1 schedules lost or served wrong bytes, 0 failed otherwise") {
		t.Errorf("one that lost bytes is not counted: %v, %s", err, total(l))
	}
	if err := os.WriteFile(filepath.Join(root, "a.md"), []byte("words"), 0o644); err != nil || count() != 4 {
		t.Error("a document counts as source", err)
	}
	if err := os.WriteFile(source, []byte("package b\n"), 0o644); err != nil || count() != 0 {
		t.Error("another tree has the same ledger", err)
	}
}
