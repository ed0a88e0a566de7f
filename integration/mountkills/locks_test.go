package mountkills_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// locks: both programs increment two counters, one under flock and one under fcntl. An increment is
// certain when its unlock, fsync or close says so.
var locks = operation{
	name: "locks",
	prepare: func(dir string, _ int64) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, lockNames[0]), counter(0), 0o644),
			os.WriteFile(filepath.Join(dir, lockNames[1]), counter(0), 0o644))
	},
	program: func(p *program) (func() error, func() error, error) {
		var held [2]*os.File
		for i := range held {
			f, err := os.OpenFile(p.at(lockNames[i]), os.O_RDWR, 0)
			if err != nil {
				return nil, nil, err
			}
			held[i] = f
		}
		step := func() error { return p.increment(p.r.IntN(2), held) }
		return step, func() error {
			for i, f := range held {
				_ = p.report(event{Call: "last close", File: i, Writes: true}, func(*event) error { return f.Close() })
			}
			return nil
		}, nil
	},
	check: checkLocks,
}

var lockNames = [2]string{"flock", "fcntl"}

// lock waits for a lock, and unlock ends it.
func lock(f *os.File, file int, typ int16, flock int) error {
	if file == 0 {
		return unix.Flock(int(f.Fd()), flock)
	}
	return unix.FcntlFlock(f.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: typ})
}

func counter(n int64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(n)), ^uint64(n))
}

// increment takes a counter's lock, and increments it. "hold" is the time in which the lock excluded
// the other program; its versions are what it read and what it wrote. Then comes what says
// whether that is certain.
func (p *program) increment(file int, held [2]*os.File) error {
	f, how := held[file], []string{"unlock", "fsync", "close"}[p.r.IntN(3)]
	if how == "close" {
		err := p.report(event{Call: "open for a lock"}, func(*event) (err error) {
			f, err = os.OpenFile(p.at(lockNames[file]), os.O_RDWR, 0)
			return err
		})
		if err != nil {
			return nil
		}
	}
	if err := p.report(event{Call: "lock"}, func(*event) error { return lock(f, file, unix.F_WRLCK, unix.LOCK_EX) }); err != nil {
		return nil
	}
	value := int64(0)
	_ = p.report(event{Call: "hold", File: file}, func(e *event) error {
		b := make([]byte, 16)
		if _, err := f.ReadAt(b, 0); err != nil {
			return err
		}
		value = int64(binary.LittleEndian.Uint64(b))
		if string(b) != string(counter(value)) {
			return wrongBytes(fmt.Sprintf("the counter is %x", b))
		}
		e.Low, e.High = value, value+1
		time.Sleep(time.Duration(p.r.IntN(2000)) * time.Microsecond)
		_, err := f.WriteAt(counter(value+1), 0)
		return err
	})
	if how == "close" {
		_ = p.report(event{Call: "close", File: file, Writes: true}, func(*event) error { return f.Close() })
		return nil
	}
	for how == "fsync" {
		if p.report(event{Call: "fsync", File: file, Writes: true}, func(*event) error { return f.Sync() }) == nil {
			break
		}
		_ = p.report(event{Call: "write again", File: file}, func(*event) error {
			_, err := f.WriteAt(counter(value+1), 0)
			return err
		})
	}
	_ = p.report(event{Call: "unlock", File: file}, func(*event) error { return lock(f, file, unix.F_UNLCK, unix.LOCK_UN) })
	if how == "unlock" {
		_ = p.report(event{Call: "late fsync", File: file, Writes: true}, func(*event) error { return f.Sync() })
	}
	return nil
}

// holding is a lock that a program had.
type holding struct {
	event
	prog int
	lost bool // its increment may be lost
}

// holdings are those of a counter, in the order in which the programs had the lock.
func (c *cell) holdings(file int) (all []holding) {
	for prog, events := range c.events {
		last := -1
		for _, e := range events {
			switch {
			case e.File != file:
			case e.Call == "hold":
				last = len(all)
				all = append(all, holding{event: e, prog: prog, lost: e.Err != ""})
			case last < 0:
			case e.Call == "fsync" && e.Err == "":
				all[last].lost = false
			case e.Err != "" && (e.Call == "close" || e.Call == "late fsync"):
				all[last].lost = true
			}
		}
	}
	slices.SortFunc(all, func(a, b holding) int { return cmp.Compare(a.Start, b.Start) })
	return all
}

// checkLocks: no two programs have a lock at once, and each sees the increments of all before it.
func checkLocks(c *cell) (wrong []string) {
	for file := range 2 {
		all := c.holdings(file)
		if len(all) < 4 {
			wrong = append(wrong, fmt.Sprintf("%d increments under %s", len(all), lockNames[file]))
		}
		possible := map[int64]bool{0: true}
		for i, h := range all {
			if i > 0 && all[i-1].prog != h.prog && h.Start < all[i-1].End {
				wrong = append(wrong, fmt.Sprintf("%s: both mounts had the lock, %v after the fault", lockNames[file], time.Duration(h.Start-c.struck)))
			}
			if h.High == 0 {
				continue // it was not read
			}
			if !possible[h.Low] {
				wrong = append(wrong, fmt.Sprintf("%s: mount %d read %d, %v after the fault, and not one of %v", lockNames[file], h.prog, h.Low, time.Duration(h.Start-c.struck), possible))
			}
			possible = map[int64]bool{h.High: true}
			if h.lost {
				possible[h.Low] = true
			}
		}
	}
	return wrong
}
