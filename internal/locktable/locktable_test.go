package locktable_test

import (
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine/internal/locktable"
)

// bytes is the naive model: what each owner has on each byte. 0: nothing, 1: read, 2: write.
type bytes map[locktable.Owner]*[size]byte

const size = 24

func (m bytes) of(o locktable.Owner) *[size]byte {
	if m[o] == nil {
		m[o] = &[size]byte{}
	}
	return m[o]
}

func (m bytes) conflict(l locktable.Lock) bool {
	for o, has := range m {
		if o == l.Owner || o.Flock != l.Flock {
			continue
		}
		for i := l.Start; i < l.End; i++ {
			if has[i] == 2 || has[i] == 1 && l.Write {
				return true
			}
		}
	}
	return false
}

// TestTableEqualsAModelOfBytes compares random locks and unlocks with a model that keeps a kind for
// each byte.
func TestTableEqualsAModelOfBytes(t *testing.T) {
	owners := []locktable.Owner{{Session: 1, ID: 1}, {Session: 1, ID: 2}, {Session: 2, ID: 1}, {Session: 1, ID: 1, Flock: true}, {Session: 2, ID: 9, Flock: true}}
	granted, refused := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		var table locktable.Table
		model := bytes{}
		for step := range 200 {
			l := locktable.Lock{Owner: owners[r.IntN(len(owners))], Write: r.IntN(2) == 0, PID: 5}
			l.Start = r.Uint64N(size)
			l.End = l.Start + 1 + r.Uint64N(size-l.Start)
			before := append(locktable.Table(nil), table...)
			old := table
			if r.IntN(3) == 0 {
				table = table.Clear(l.Owner, l.Start, l.End)
				fill(model.of(l.Owner), l, 0)
			} else {
				found, conflict := table.Conflict(l)
				if want := model.conflict(l); conflict != want || conflict && !found.Excludes(l) {
					t.Fatalf("seed %d, step %d: conflict of %+v with %+v: got %t (%+v), want %t", seed, step, l, table, conflict, found, want)
				}
				if conflict {
					refused++
					continue
				}
				granted++
				table = table.Set(l)
				kind := byte(1)
				if l.Write {
					kind = 2
				}
				fill(model.of(l.Owner), l, kind)
			}
			if !table.Ordered() {
				t.Fatalf("seed %d, step %d: not in order: %+v", seed, step, table)
			}
			if got, want := asBytes(table), model; !equal(got, want, owners) {
				t.Fatalf("seed %d, step %d: after %+v the table is %+v", seed, step, l, table)
			}
			for i := range before {
				if old[i] != before[i] {
					t.Fatalf("seed %d, step %d: the former table was changed in place", seed, step)
				}
			}
		}
	}
	if granted < 1000 || refused < 1000 {
		t.Fatalf("the test granted %d and refused %d locks", granted, refused)
	}
}

func fill(has *[size]byte, l locktable.Lock, kind byte) {
	for i := l.Start; i < l.End; i++ {
		has[i] = kind
	}
}

func asBytes(table locktable.Table) bytes {
	m := bytes{}
	for _, l := range table {
		kind := byte(1)
		if l.Write {
			kind = 2
		}
		fill(m.of(l.Owner), l, kind)
	}
	return m
}

func equal(a, b bytes, owners []locktable.Owner) bool {
	for _, o := range owners {
		if *a.of(o) != *b.of(o) {
			return false
		}
	}
	return true
}

func TestDropTakesAllLocksOfASession(t *testing.T) {
	var table locktable.Table
	for i, o := range []locktable.Owner{{Session: 1, ID: 1}, {Session: 2, ID: 1}, {Session: 1, ID: 3, Flock: true}} {
		table = table.Set(locktable.Lock{Owner: o, Start: uint64(10 * i), End: uint64(10*i + 5), Write: true})
	}
	left := table.Drop(1)
	if len(left) != 1 || left[0].Session != 2 || left.HasSession(1) || !left.HasSession(2) || !table.HasSession(1) {
		t.Fatalf("left %+v of %+v", left, table)
	}
}

func TestClearOfTakesTheLocksOfAllSessions(t *testing.T) {
	var table locktable.Table
	for _, o := range []locktable.Owner{{Session: 1, ID: 1}, {Session: 2, ID: 1}, {Session: 2, ID: 3}, {Session: 2, ID: 1, Flock: true}} {
		table = table.Set(locktable.Lock{Owner: o, Start: 0, End: 10})
		table = table.Set(locktable.Lock{Owner: o, Start: 20, End: 30})
	}
	left := table.ClearOf(false, 1, 5, locktable.Max)
	for _, l := range left {
		cleared := !l.Flock && l.ID == 1
		if cleared && (l.Start != 0 || l.End != 5) || !cleared && l.End-l.Start != 10 {
			t.Errorf("left %+v", l)
		}
	}
	if len(left) != 2+4 || len(table) != 8 {
		t.Fatalf("left %+v of %+v", left, table)
	}
}
