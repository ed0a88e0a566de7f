// Package mountkills_test has two mounts work on the same files while servers and daemons are killed.
// All are real processes: three metadata servers, three chunkservers, two mounts with their
// supervisors, and one program for each mount and each operation.
//
// A cell is an operation and a fault: the programs repeat the operation, the fault comes in the middle,
// and the programs go on. Then the operation's checker looks at what each call answered, and compares
// that with what docs/semantics promises.
//
// One path through it: TestTwoMountsSurviveKills starts the cluster (bench_test.go) -> run starts the
// programs of a round of cells (cell_test.go, program_test.go) -> a fault (fault_test.go) -> each
// operation checks its history (closeopen_test.go and so on). teeth_test.go shows that the checkers
// see what is wrong.
package mountkills_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
)

// envTask makes the test binary a program of a cell.
const envTask = "MORAINE_TEST_TASK"

func TestMain(m *testing.M) {
	if spec := os.Getenv(envTask); spec != "" {
		beProgram(spec)
		return
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "MORAINE_") && !strings.HasPrefix(name, "MORAINE_TEST_") {
			os.Unsetenv(name) // a cluster of the caller
		}
	}
	code := m.Run()
	if dir := built.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// operation is what the programs of a cell repeat. A program is a process: it has one mount.
type operation struct {
	name string
	// prepare makes the files of a cell, by one of the mounts. It may be nil.
	prepare func(dir string, size int64) error
	// program returns a step, and what ends the program.
	program func(p *program) (step, end func() error, err error)
	// check returns what no promise permits.
	check func(c *cell) []string
}

// operations are the rows of the table, and faults its columns (fault_test.go).
var operations = []operation{closeToOpen, locks, appends, renames, unlinks, mappings}

// TestTwoMountsSurviveKills is the whole table. The short form has one round for each fault, in
// which all operations run at once. The long form has each cell by itself, too.
func TestTwoMountsSurviveKills(t *testing.T) {
	t.Parallel()
	first := testseed.First(t)
	b := newBench(t)
	for seed := first; seed < first+uint64(testseed.Runs(t, 1, 6)); seed++ {
		for _, f := range faults {
			if f.long && !testseed.Long() {
				continue
			}
			b.run(t, seed, f, operations...)
			for i := 0; testseed.Long() && i < len(operations); i++ {
				b.run(t, seed, f, operations[i])
			}
		}
	}
}

// random returns the choices of one seed, for one part of a round.
func random(seed uint64, part string) *rand.Rand {
	var key [32]byte
	copy(key[:], fmt.Sprintf("%d %s", seed, part))
	return rand.New(rand.NewChaCha8(key))
}
