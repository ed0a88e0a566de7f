package bitflips_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/integration/incluster"
)

// place is a row: where bytes are, and the effect of one bit that flips there.
type place struct {
	where string
	flip  string // how it is flipped
	seen  string // how it is detected
	heals string // how it is repaired; "": it is not
	pages string // pages of docs/formats that describe these bytes

	// What try must show, each time: a counter that grows and, unless it is "", a
	// log line. fails says that only the operation returns an error, which try
	// requires.
	counted func(w *world) float64
	logs    string
	fails   bool

	// One of these. try flips one random bit in a cluster that rows share, and
	// requires that it is detected, reported and repaired. alone needs no cluster.
	// test names a test, package.TestName, if only its package reaches the place.
	try   func(w *world, rng *rand.Rand)
	alone func(t *testing.T, rng *rand.Rand)
	test  string
}

// tries is how many random bits of each place flip: few in a short run.
func tries(short, long int) int {
	if n, err := strconv.Atoi(os.Getenv("MORAINE_TEST_RUNS")); err == nil {
		return n
	}
	if os.Getenv("MORAINE_TEST_LONG") != "" {
		return long
	}
	return short
}

// rngOf chooses the position of one try. MORAINE_TEST_SEED repeats it.
func rngOf(try int) (rng *rand.Rand, seed uint64) {
	seed = uint64(try)
	if n, err := strconv.ParseUint(os.Getenv("MORAINE_TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	return rand.New(rand.NewPCG(seed, 0x666c6970)), seed
}

// TestBitFlips flips one bit in each place where the bytes of a file are between
// its writer and its reader. The flip is detected, reported, and repaired if
// redundancy allows, and no wrong byte is served. places_test.go has the table.
func TestBitFlips(t *testing.T) {
	inBucketWorld(t, incluster.Options{ScrubParity: 10_000}, func(w *world) {
		for _, p := range places {
			if p.try == nil {
				continue
			}
			n := tries(1, 12)
			for try := range n {
				rng, seed := rngOf(try)
				w.newFile(rng, fmt.Sprintf("/%s-%d", strings.ReplaceAll(p.where, " ", "-"), try))
				w.during(fmt.Sprintf("%s, seed %d", p.where, seed), func() { w.shows(p, func() { p.try(w, rng) }) })
			}
			w.t.Logf("%-60s %3d bits: all found, 0 wrong bytes served; healed: %s", p.where, n, orNot(p.heals))
		}
	})
}

// shows requires that the effect of fn on a place is detected as its row says.
func (w *world) shows(p place, fn func()) {
	w.t.Helper()
	if p.fails {
		fn()
		return
	}
	count, lines := p.counted(w), w.lines.count(p.logs)
	fn()
	require.Greater(w.t, p.counted(w), count, "nothing counts it: %s", p.seen)
	if p.logs != "" {
		require.Greater(w.t, w.lines.count(p.logs), lines, "nothing logs %q", p.logs)
	}
}

// TestBitFlipsAlone flips bits in places that need no cluster.
func TestBitFlipsAlone(t *testing.T) {
	for _, p := range places {
		if p.alone == nil {
			continue
		}
		t.Run(p.where, func(t *testing.T) {
			for try := range tries(10, 2000) {
				rng, seed := rngOf(try)
				p.alone(t, rng)
				require.False(t, t.Failed(), "seed %d", seed)
			}
		})
	}
}

// during names the current step if it fails.
func (w *world) during(what string, fn func()) {
	done := false
	defer func() {
		if !done {
			w.t.Errorf("during: %s", what)
		}
	}()
	fn()
	done = true
}

func orNot(s string) string {
	if s == "" {
		return "not"
	}
	return s
}

// TestEveryPlaceHasARow: each format of docs/formats has a row, each row is
// complete, and the tests that it names exist. A new format without a row fails.
func TestEveryPlaceHasARow(t *testing.T) {
	covered := map[string]bool{}
	for _, p := range places {
		require.NotEmpty(t, p.flip, p.where)
		require.NotEmpty(t, p.seen, p.where)
		ways := 0
		for _, has := range []bool{p.try != nil, p.alone != nil, p.test != ""} {
			if has {
				ways++
			}
		}
		require.Equal(t, 1, ways, "%s: one way to be tested", p.where)
		require.Equal(t, p.try != nil, p.fails != (p.counted != nil), "%s: what is seen in a cluster must be required", p.where)
		if p.test != "" {
			require.True(t, testExists(t, p.test), "%s: test %s does not exist", p.where, p.test)
		}
		for page := range strings.FieldsSeq(p.pages) {
			require.FileExists(t, filepath.Join("../../docs/formats", page+".md"), p.where)
			covered[page] = true
		}
	}
	pages, err := filepath.Glob("../../docs/formats/*.md")
	require.NoError(t, err)
	require.Greater(t, len(pages), 10)
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		if name == "README" || name == "mount-state" { // that is memory of processes of one node, as their heaps are
			continue
		}
		require.True(t, covered[name], "docs/formats/%s.md has no row in places_test.go", name)
	}
}

// testExists looks for a test, named package.TestName, in the sources of its package.
func testExists(t *testing.T, name string) bool {
	dir, test, ok := strings.Cut(name, ".")
	require.True(t, ok, name)
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.Contains(string(source), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
