package testseed_test

import (
	"slices"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
)

// settings sets the variables of a run; "" leaves one unset.
func settings(t *testing.T, long, seed, runs string) {
	t.Setenv("MORAINE_TEST_LONG", long)
	t.Setenv("MORAINE_TEST_SEED", seed)
	t.Setenv("MORAINE_TEST_RUNS", runs)
}

// The long form runs every seed of a table. The short one runs consecutive ones of
// them. A repeated run uses the given seed.
func TestSeeds(t *testing.T) {
	settings(t, "1", "", "")
	if s := testseed.Seeds(t, 3, 7); !slices.Equal(s, []uint64{0, 1, 2, 3, 4, 5, 6}) {
		t.Errorf("the long form has %v", s)
	}
	settings(t, "", "", "")
	for range 100 {
		s := testseed.Seeds(t, 3, 7)
		if len(s) != 3 || s[2] != s[0]+2 || s[2] > 6 {
			t.Fatalf("the short form has %v", s)
		}
	}
	if s := testseed.Seeds(t, 7, 7); len(s) != 7 || s[0] != 0 {
		t.Errorf("where it has as many it has %v", s)
	}
	settings(t, "", "41", "1")
	if s := testseed.Seeds(t, 3, 7); !slices.Equal(s, []uint64{41}) {
		t.Errorf("a run of one seed has %v", s)
	}
}

// A test of the long form alone is skipped in the short one.
func TestOnlyLong(t *testing.T) {
	ran := false
	settings(t, "", "", "")
	t.Run("short", func(t *testing.T) {
		testseed.OnlyLong(t)
		ran = true
	})
	if ran {
		t.Error("the short form runs it")
	}
	settings(t, "1", "", "")
	t.Run("long", func(t *testing.T) {
		testseed.OnlyLong(t)
		ran = true
	})
	if !ran {
		t.Error("the long form skips it")
	}
}

// A sample has one row in so many, in turn, and the long form all.
func TestSample(t *testing.T) {
	rows := func() (n int) {
		run := testseed.Sample(t, 5)
		for range 100 {
			if run() {
				n++
			}
		}
		return n
	}
	settings(t, "", "", "")
	if n := rows(); n != 20 {
		t.Errorf("%d rows of 100", n)
	}
	settings(t, "1", "", "")
	if n := rows(); n != 100 {
		t.Errorf("%d rows of 100 in the long form", n)
	}
}
