package fusebench

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The operations of a worker.
const (
	opCreate = "create"
	opStat   = "stat"
	opRead   = "read"
	opRename = "rename"
	opUnlink = "unlink"
)

// smallSize is the length of a small file.
const smallSize = 4 << 10

// Work is what one process does to its small files.
type Work struct {
	Op  string `json:"op"`
	Dir string `json:"dir"`
	// Prefix begins the name of each file, Files is how many there are, and Size the
	// length of each.
	Prefix string `json:"prefix"`
	Files  int    `json:"files"`
	Size   int    `json:"size"`
}

// result is what a process did.
type result struct {
	Ops     int64   `json:"ops"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Error   string  `json:"error,omitempty"`
}

// RunWorker reports that it is ready, waits for a line on in, works, and writes its result as a
// line on out.
func RunWorker(w Work, in io.Reader, out io.Writer) error {
	if _, err := fmt.Fprintln(out, `{"ready":true}`); err != nil {
		return err
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return fmt.Errorf("bench: no start signal: %w", err)
	}
	cpu, start := ownCPU(), time.Now()
	r, err := w.do()
	r.Seconds, r.CPU = time.Since(start).Seconds(), ownCPU()-cpu
	if err != nil {
		r.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(r)
}

// do works on each file once. Stats and reads go in an order of chance, the same each time.
func (w Work) do() (r result, err error) {
	order := make([]int, w.Files)
	for i := range order {
		order[i] = i
	}
	if w.Op == opStat || w.Op == opRead {
		rand.New(rand.NewPCG(1, uint64(w.Files))).Shuffle(w.Files, func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	buf := make([]byte, w.Size+1)
	for _, i := range order {
		n, err := w.one(i, buf)
		if err != nil {
			return r, err
		}
		r.Ops++
		r.Bytes += int64(n)
	}
	return r, nil
}

// one works on file i, and returns how many bytes it moved.
func (w Work) one(i int, buf []byte) (n int, err error) {
	name := w.name(w.Prefix, i)
	switch w.Op {
	case opCreate:
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil || w.Size == 0 {
			return 0, errors.Join(err, closeFile(f))
		}
		n, err = f.Write(content(buf[:w.Size], i))
		return n, errors.Join(err, f.Close())
	case opStat:
		st, err := os.Lstat(name)
		if err == nil && st.Size() != int64(w.Size) {
			err = fmt.Errorf("%s has %d bytes, not %d", name, st.Size(), w.Size)
		}
		return 0, err
	case opRead:
		return w.read(name, i, buf)
	case opRename:
		return 0, os.Rename(name, w.name(renamed, i))
	case opUnlink:
		return 0, os.Remove(name)
	}
	return 0, fmt.Errorf("bench: unknown work %q", w.Op)
}

// renamed begins the names of renamed files.
const renamed = "r"

func (w Work) name(prefix string, i int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("%s%06d", prefix, i))
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// read reads a file to its end, and compares its length and its first bytes.
func (w Work) read(name string, i int, buf []byte) (n int, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err = io.ReadFull(f, buf)
	if !errors.Is(err, io.ErrUnexpectedEOF) || n != w.Size || binary.LittleEndian.Uint64(buf) != mark(i) {
		return n, fmt.Errorf("%s: %d bytes were read, not the %d written ones: %w", name, n, w.Size, err)
	}
	return n, nil
}

// content fills buf for file i: a mark, then bytes that differ from file to file.
func content(buf []byte, i int) []byte {
	for off := 0; off+8 <= len(buf); off += 8 {
		binary.LittleEndian.PutUint64(buf[off:], mark(i)+uint64(off)*0x9e3779b97f4a7c15)
	}
	return buf
}

func mark(i int) uint64 { return uint64(i+1) * 0xbf58476d1ce4e5b9 }

// ParseWork reads a worker's --work.
func ParseWork(spec string) (w Work, err error) {
	d := json.NewDecoder(strings.NewReader(spec))
	d.DisallowUnknownFields()
	return w, d.Decode(&w)
}
