// Package testseed repeats random tests and makes them long, in one form for all of
// them. The environment says with which seed a test begins, how many runs it makes,
// and whether it runs the long form. No server uses it.
//
// One path through it: a test calls First(t), and runs with that seed and the ones
// after it, as Runs says. It fails and has printed the seed.
// MORAINE_TEST_SEED=<seed> MORAINE_TEST_RUNS=1 repeats its choices.
package testseed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

const (
	seedVariable = "MORAINE_TEST_SEED"
	runsVariable = "MORAINE_TEST_RUNS"
	longVariable = "MORAINE_TEST_LONG"
)

// Long reports whether MORAINE_TEST_LONG requests the long form.
func Long() bool { return os.Getenv(longVariable) != "" }

// OnlyLong skips a test that only the long form runs.
func OnlyLong(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skipf("only the long form runs it: set %s", longVariable)
	}
}

// First returns and prints the first seed of a random test: MORAINE_TEST_SEED, or a
// random one.
func First(t testing.TB) uint64 {
	t.Helper()
	return From(t, rand.Uint64N(1e9))
}

// From is First with a default seed.
func From(t testing.TB, seed uint64) uint64 {
	t.Helper()
	if v := os.Getenv(seedVariable); v != "" {
		seed = number(t, seedVariable, v)
	}
	t.Logf("seed %d (%s=%d repeats it)", seed, seedVariable, seed)
	return seed
}

// Runs returns how many runs a test makes: MORAINE_TEST_RUNS if set, otherwise long
// in the long form and short in the short one.
func Runs(t testing.TB, short, long int) int {
	t.Helper()
	if v := os.Getenv(runsVariable); v != "" {
		return int(number(t, runsVariable, v))
	}
	return Of(short, long)
}

// Of returns long in the long form, and short otherwise.
func Of[T any](short, long T) T {
	if Long() {
		return long
	}
	return short
}

// Seeds returns the seeds of a table of long ones, 0 and up. The long form gets all
// of them. The short form gets short consecutive ones, from a seed on that
// MORAINE_TEST_SEED or chance selects. MORAINE_TEST_RUNS changes the number.
func Seeds(t testing.TB, short, long uint64) []uint64 {
	t.Helper()
	var first uint64
	if !Long() {
		first = rand.Uint64N(long - min(short, long) + 1)
	}
	first = From(t, first)
	seeds := make([]uint64, Runs(t, int(short), int(long)))
	for i := range seeds {
		seeds[i] = first + uint64(i)
	}
	return seeds
}

// Sample returns a function that decides, for each row of a long table in order,
// whether it runs. The long form runs all rows. The short form runs one row in
// `one`, from a row on that MORAINE_TEST_SEED or chance selects.
func Sample(t testing.TB, one uint64) func() bool {
	if Long() {
		return func() bool { return true }
	}
	row := First(t)
	return func() bool {
		row++
		return row%one == 0
	}
}

func number(t testing.TB, variable, v string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}
