package mountkills_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// closeToOpen: each program writes a file of its own, from open to close, and reads both files, from
// open to close.
var closeToOpen = operation{
	name: "close to open",
	prepare: func(dir string, size int64) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "file0"), words(1, 0, size), 0o644),
			os.WriteFile(filepath.Join(dir, "file1"), words(1, 0, size), 0o644))
	},
	program: func(p *program) (func() error, func() error, error) {
		version := int64(1)
		step := func() error {
			if p.r.IntN(3) == 0 {
				version++
				_ = p.report(event{Call: "write", Low: version, High: version, Writes: true}, func(*event) error {
					return p.writeVersion(p.mine("file"), version)
				})
				return nil
			}
			name, call := p.its("file"), "read its"
			if p.r.IntN(4) == 0 {
				name, call = p.mine("file"), "read mine"
			}
			_ = p.report(event{Call: call}, func(e *event) error { return readVersions(name, p.Size, e) })
			return nil
		}
		return step, func() error { return nil }, nil
	},
	check: func(c *cell) (wrong []string) {
		for prog := range 2 {
			writes := c.of(prog, "write")
			wrong = append(wrong, c.checkRegister(writes, c.of(1-prog, "read its"), 1-prog, 1)...)
			wrong = append(wrong, c.checkRegister(writes, c.of(prog, "read mine"), prog, 1)...)
			if len(writes) < 2 || len(c.of(prog, "read its")) == 0 {
				wrong = append(wrong, fmt.Sprintf("mount %d did too little", prog))
			}
		}
		return wrong
	},
}

// writeVersion overwrites a file, in one call or in several.
func (p *program) writeVersion(name string, version int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	piece := p.Size
	if p.r.IntN(2) == 0 {
		piece = max(1024, p.Size/4)
	}
	for off := int64(0); off < p.Size && err == nil; off += piece {
		_, err = f.WriteAt(words(version, off, min(piece, p.Size-off)), off)
	}
	return errors.Join(err, f.Close())
}
