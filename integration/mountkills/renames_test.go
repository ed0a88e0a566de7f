package mountkills_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// renames: both programs replace one file by a rename, and read it. A read sees one version whole,
// and never one that was replaced before. There is always a file.
var renames = operation{
	name: "rename over",
	prepare: func(dir string, size int64) error {
		return os.WriteFile(filepath.Join(dir, "target"), words(2, 0, sizeOf(2, size)), 0o644)
	},
	program: func(p *program) (func() error, func() error, error) {
		version := 2 + int64(p.Prog)
		step := func() error {
			switch n := p.r.IntN(8); {
			case n < 3:
				version += 2
				p.replace(version)
			case n < 4:
				_ = p.report(event{Call: "fsync of the directory", Changes: true, Writes: true}, func(*event) error { return syncDir(p.Dir) })
			default:
				p.read()
			}
			return nil
		}
		return step, func() error { return nil }, nil
	},
	check: checkRenames,
}

// sizeOf is the size of a version.
func sizeOf(version, size int64) int64 { return 8 + (version*7919*8)%size }

// replace writes a new file and renames it over the old one.
func (p *program) replace(version int64) {
	err := p.report(event{Call: "write new", Writes: true, Changes: true, Made: true}, func(*event) error {
		return os.WriteFile(p.mine("new"), words(version, 0, sizeOf(version, p.Size)), 0o644)
	})
	if err != nil {
		return
	}
	// ENOENT is a mistake: a close with content has succeeded, so the source is there.
	_ = p.report(event{Call: "rename", Low: version, High: version, Changes: true}, func(*event) error {
		return unix.Rename(p.mine("new"), p.at("target"))
	})
}

// read reads one version.
func (p *program) read() {
	_ = p.report(event{Call: "read renamed"}, func(e *event) error {
		f, err := os.Open(p.at("target"))
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		b := make([]byte, st.Size())
		if n, err := f.ReadAt(b, 0); err != nil {
			return wrongBytes(fmt.Sprintf("%d of %d bytes were read: %v", n, len(b), err))
		}
		if e.Low, e.High, err = versions(b, 0); err != nil {
			return err
		}
		if e.Low != e.High || st.Size() != sizeOf(e.Low, p.Size) {
			return wrongBytes(fmt.Sprintf("versions %d to %d in a file of %d bytes", e.Low, e.High, st.Size()))
		}
		return nil
	})
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// checkRenames: no read shows a version that another one had replaced before the read began.
func checkRenames(c *cell) (wrong []string) {
	of := map[int64]event{2: {High: 2}} // the first one was there before
	for prog := range 2 {
		if len(c.of(prog, "rename")) == 0 || len(c.of(prog, "read renamed")) == 0 {
			wrong = append(wrong, fmt.Sprintf("mount %d did too little", prog))
		}
		for _, e := range c.of(prog, "rename") {
			of[e.High] = e
		}
	}
	for prog := range 2 {
		for _, r := range c.of(prog, "read renamed") {
			if r.Err != "" || r.Wrong != "" {
				continue
			}
			v, ok := of[r.High]
			if !ok || v.Start > r.End {
				wrong = append(wrong, fmt.Sprintf("mount %d read version %d before it was there", prog, r.High))
				continue
			}
			for _, w := range of {
				if w.Err == "" && w.Start > v.End && w.End < r.Start && !c.mayBeLost(w, r) {
					wrong = append(wrong, fmt.Sprintf("mount %d, %v after the fault, read version %d, which version %d had replaced %v before",
						prog, time.Duration(r.Start-c.struck), r.High, w.High, time.Duration(r.Start-w.End)))
					break
				}
			}
		}
	}
	return wrong
}

// mayBeLost reports whether a daemon that dies in a delegated directory may take a rename with it. Not
// if the other mount has seen it, or an fsync of the directory waited for it.
func (c *cell) mayBeLost(w, r event) bool {
	prog := int(w.High % 2)
	if prog != c.fault.daemon || w.Start > c.back || r.End < c.struck {
		return false
	}
	for _, s := range c.of(prog, "fsync of the directory") {
		if s.Err == "" && s.Start > w.End && s.End < c.struck {
			return false
		}
	}
	for _, s := range c.of(1-prog, "read renamed") {
		if s.High == w.High && s.End < c.struck {
			return false
		}
	}
	return true
}
