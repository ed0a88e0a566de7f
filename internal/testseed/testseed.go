// Package testseed is how random tests are repeated and made long, in one form
// for all of them: the environment says which seed a test begins with, how many
// runs it makes, and whether they are the long ones. No server uses it.
//
// One path through it: First(t) -> run the test with that seed, and the ones
// after it as Runs says -> it fails and has printed the seed ->
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

// Long reports whether the long form is wanted (MORAINE_TEST_LONG).
func Long() bool { return os.Getenv(longVariable) != "" }

// First returns the seed that a random test begins with, and prints it:
// MORAINE_TEST_SEED, or one that is drawn.
func First(t testing.TB) uint64 {
	t.Helper()
	return From(t, rand.Uint64N(1e9))
}

// From is First with the seed to begin with where none is given.
func From(t testing.TB, seed uint64) uint64 {
	t.Helper()
	if v := os.Getenv(seedVariable); v != "" {
		seed = number(t, seedVariable, v)
	}
	t.Logf("seed %d (%s=%d repeats it)", seed, seedVariable, seed)
	return seed
}

// Runs returns how many runs a test makes: MORAINE_TEST_RUNS, or else short, or
// long in the long form.
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

// Seeds returns the seeds of a table of long ones, 0 and up: all of them in the long
// form, and otherwise short of them in a row, from one on that MORAINE_TEST_SEED or
// chance names. MORAINE_TEST_RUNS says how many.
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

// Sample returns what says of each row of a long table, in order, whether it is
// run: all in the long form, and otherwise one in so many, from one on that
// MORAINE_TEST_SEED or chance names.
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
