package mountkills_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// mappings: each program writes a file of its own through a mapping, and reads the other's in four
// ways. What msync has confirmed is seen. A page that was never read is filled whenever it is touched.
var mappings = operation{
	name: "mappings",
	prepare: func(dir string, _ int64) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "mapped0"), words(1, 0, mappedBytes), 0o644),
			os.WriteFile(filepath.Join(dir, "mapped1"), words(1, 0, mappedBytes), 0o644),
			os.WriteFile(filepath.Join(dir, "large"), words(1, 0, largeBytes), 0o644))
	},
	program: func(p *program) (func() error, func() error, error) {
		m := &mapper{program: p, version: 1}
		var err error
		if m.own, m.file, err = mapFile(p.mine("mapped"), os.O_RDWR, mappedBytes); err != nil {
			return nil, nil, err
		}
		if m.long, _, err = mapFile(p.its("mapped"), os.O_RDONLY, mappedBytes); err != nil {
			return nil, nil, err
		}
		if m.large, _, err = mapFile(p.at("large"), os.O_RDONLY, largeBytes); err != nil {
			return nil, nil, err
		}
		return m.step, func() error {
			_ = p.report(event{Call: "close mapped", Writes: true}, func(*event) error { return m.file.Close() })
			return nil
		}, nil
	},
	check: checkMappings,
}

const (
	mappedBytes = 64 << 10
	largeBytes  = 8 << 20
)

// mapper is the program.
type mapper struct {
	*program
	file             *os.File
	own, long, large []byte
	version          int64
}

// mapFile opens and maps a file.
func mapFile(name string, flags int, n int) ([]byte, *os.File, error) {
	f, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	prot := unix.PROT_READ
	if flags == os.O_RDWR {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return b, f, nil
}

func (m *mapper) step() error {
	switch n := m.r.IntN(8); {
	case n < 2:
		m.version++
		_ = m.report(event{Call: "msync", Low: m.version, High: m.version, Writes: true}, func(*event) error {
			fill(m.own, m.version)
			return unix.Msync(m.own, unix.MS_SYNC)
		})
	case n < 3:
		_ = m.report(event{Call: "read opened"}, func(e *event) error { return readVersions(m.its("mapped"), mappedBytes, e) })
	case n < 5:
		_ = m.report(event{Call: "read newly mapped"}, func(e *event) error {
			b, f, err := mapFile(m.its("mapped"), os.O_RDONLY, mappedBytes)
			if err != nil {
				return err
			}
			err = guarded(func() (err error) {
				e.Low, e.High, err = versions(b, 0)
				return err
			})
			return errors.Join(err, unix.Munmap(b), f.Close())
		})
	case n < 7:
		_ = m.report(event{Call: "read long mapped"}, func(e *event) (err error) {
			e.Low, e.High, err = versions(m.long, 0)
			return err
		})
	default:
		off := int64(m.r.IntN(largeBytes/4096)) * 4096
		_ = m.report(event{Call: "touch a page"}, func(e *event) (err error) {
			e.Low, e.High, err = versions(m.large[off:off+4096], off)
			return err
		})
	}
	return nil
}

// late is for how long a mapping that lasts may show what was there before. No lease covers these
// files while both mounts change them: then the kernel drops a page only after the read that filled
// it. A dead daemon's leases delay a change for as long, and not longer.
const late = 3 * time.Second

func checkMappings(c *cell) (wrong []string) {
	for prog := range 2 {
		writes := c.of(prog, "msync")
		for _, call := range []string{"read opened", "read newly mapped"} {
			wrong = append(wrong, c.checkRegister(writes, c.of(1-prog, call), 1-prog, 1)...)
		}
		wrong = append(wrong, c.checkRegister(writes, c.lasting(1-prog), 1-prog, 1)...)
		for _, e := range c.of(prog, "touch a page") {
			if e.Err == "" && e.Wrong == "" && (e.Low != 1 || e.High != 1) {
				wrong = append(wrong, fmt.Sprintf("mount %d: a page has version %d to %d", prog, e.Low, e.High))
			}
		}
		if len(writes) < 2 || len(c.of(prog, "touch a page")) == 0 {
			wrong = append(wrong, fmt.Sprintf("mount %d did too little", prog))
		}
	}
	return wrong
}

// lasting are the reads of a mapping that lasts, without those that no daemon looked after. They count
// as if they had begun so much earlier.
func (c *cell) lasting(prog int) (reads []event) {
	for _, e := range c.of(prog, "read long mapped") {
		alone := c.fault.daemon == prog && c.back-c.struck > int64(late)
		if !alone || e.End < c.struck+int64(late) || e.Start > c.back+int64(late) {
			e.Start -= int64(late)
			reads = append(reads, e)
		}
	}
	return reads
}
