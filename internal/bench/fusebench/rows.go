package fusebench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// cold is which caches a row finds empty.
type cold int

const (
	notCold   cold = iota
	coldNames      // of the mount and the kernel
	coldData       // also of the servers, with content of files
)

// spec is one row of the table.
type spec struct {
	name  string
	bytes bool // the figure is MB/s, not ops/s
	fio   bool
	cold  cold
	needs string // the row that makes its files
	// prepare is not measured; check fails where the row has not done what it says.
	prepare, check func(context.Context, *site) error
	run            func(context.Context, *site) (done, error)
	limit          limit
}

// specs in the order in which they run: later rows use what earlier ones made.
var specs = []spec{
	{name: "seq-write", bytes: true, fio: true, run: fioRun("--rw=write", "--bs=1M", "--end_fsync=1"), limit: diskWrite, check: largeIsThere},
	{name: "seq-read-cold", bytes: true, fio: true, cold: coldData, needs: "seq-write", run: fioRun("--rw=read", "--bs=1M"), limit: diskRead},
	{name: "seq-read-warm", bytes: true, fio: true, needs: "seq-write", prepare: readLarge, run: fioRun("--rw=read", "--bs=1M"), limit: memcpy},
	{name: "rand-read-cached", fio: true, needs: "seq-write", prepare: readLarge, run: fioRandom("randread"), limit: memcpyBlocks},
	{name: "rand-read-cold", fio: true, cold: coldData, needs: "seq-write", run: fioRandomOnce, limit: randomRead},
	{name: "rand-read-direct", fio: true, needs: "seq-write", run: fioRandom("randread", "--direct=1"), limit: randomRead},
	{name: "rand-write", fio: true, needs: "seq-write", run: fioRandom("randwrite", "--end_fsync=1"), limit: randomWrite},
	{name: "create-4k", run: smallRun(opCreate, "f", smallSize), check: smallAre("f", 1)},
	{name: "create-empty", run: smallRun(opCreate, "e", 0), check: smallAre("e", 1)},
	{name: "stat-cold", cold: coldNames, needs: "create-4k", run: smallRun(opStat, "f", smallSize)},
	{name: "stat-warm", needs: "create-4k", prepare: smallOnce(opStat), run: smallRun(opStat, "f", smallSize)},
	{name: "read-small-cold", cold: coldData, needs: "create-4k", run: smallRun(opRead, "f", smallSize)},
	{name: "read-small-warm", needs: "create-4k", prepare: smallOnce(opRead), run: smallRun(opRead, "f", smallSize)},
	{name: "rename", needs: "create-empty", run: smallRun(opRename, "e", 0), check: smallAre("r", 1)},
	{name: "unlink", needs: "create-4k", run: smallRun(opUnlink, "f", smallSize), check: smallAre("f", 0)},
	{name: "untar", run: untar, check: treeIs(true)},
	{name: "ls-cold", cold: coldNames, needs: "untar", run: list},
	{name: "ls-warm", needs: "untar", prepare: func(ctx context.Context, s *site) error { _, err := list(ctx, s); return err }, run: list},
	{name: "rm-r", needs: "untar", run: removeTree, check: treeIs(false)},
}

// Rows returns the names of all rows.
func Rows() (names []string) {
	for _, s := range specs {
		names = append(names, s.name)
	}
	return names
}

// choice is a row of a run. Without reported it runs only because another row needs its files.
type choice struct {
	spec
	index    int
	reported bool
}

// choose returns the named rows (empty: all), and those that they need, in order.
func choose(names []string) (chosen []choice, err error) {
	for _, n := range names {
		if !slices.Contains(Rows(), n) {
			return nil, fmt.Errorf("bench: fuse has no row %q: name some of %s", n, strings.Join(Rows(), ", "))
		}
	}
	needed := map[string]bool{}
	for i, s := range slices.Backward(specs) { // a row needs one before it
		reported := len(names) == 0 || slices.Contains(names, s.name)
		if !reported && !needed[s.name] {
			continue
		}
		needed[s.needs] = true
		chosen = append(chosen, choice{spec: s, index: i, reported: reported})
	}
	slices.Reverse(chosen)
	return chosen, nil
}

// site is a target in one round.
type site struct {
	*run
	target Target
	dir    string
}

// measure prepares a row, and runs it between two looks at the CPU of the processes.
func (s *site) measure(ctx context.Context, c choice) (d done, err error) {
	how := ""
	if c.cold != notCold && c.reported {
		if how, err = s.target.Cool(ctx, c.cold == coldData); err != nil {
			return done{}, err
		}
	}
	if c.prepare != nil && c.reported {
		if err := c.prepare(ctx, s); err != nil {
			return done{}, err
		}
	}
	mount, servers := look(s.target.Mount), look(s.target.Servers)
	if d, err = c.spec.run(ctx, s); err != nil {
		return done{}, err
	}
	d.mount, d.servers, d.cold = mount.used(), servers.used(), how
	if c.check != nil {
		err = c.check(ctx, s)
	}
	return d, err
}

// large is the name of the file of the rows with fio.
func (s *site) large() string { return filepath.Join(s.dir, "large") }

// largeIsThere checks the length of the large file.
func largeIsThere(_ context.Context, s *site) error {
	st, err := os.Stat(s.large())
	if err == nil && st.Size() != s.Size {
		err = fmt.Errorf("%s has %d bytes, not %d", s.large(), st.Size(), s.Size)
	}
	return err
}

// smallAre returns a check: of all small files whose names begin with prefix, the part that is left.
func smallAre(prefix string, part int) func(context.Context, *site) error {
	return func(_ context.Context, s *site) error {
		found := 0
		for p := range s.Processes {
			entries, err := os.ReadDir(s.smallDir(p))
			if err != nil {
				return err
			}
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), prefix) {
					found++
				}
			}
		}
		if want := s.each() * s.Processes * part; found != want {
			return fmt.Errorf("%s has %d files %s*, not %d", s.dir, found, prefix, want)
		}
		return nil
	}
}

// each is how many small files each process has.
func (s *site) each() int { return s.Files / s.Processes }

// smallDir is the directory of one process.
func (s *site) smallDir(process int) string {
	return filepath.Join(s.dir, fmt.Sprintf("process-%d", process))
}
