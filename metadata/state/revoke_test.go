package state_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/morainefs/moraine/metadata/state/session"
	"github.com/morainefs/moraine/transport/wire"
)

// The list of revoked certificates has each once, keeps all until they are removed, and is bounded.
func TestRevocations(t *testing.T) {
	b := newCluster(t, 1)
	revoke := func(undo bool, all ...*wire.Revocation) string {
		return kind(b.as("ops", "admin", &wire.MetaRequest{Op: &wire.MetaRequest_RevokeCert{RevokeCert: &wire.RevokeCert{Undo: undo, Revocations: all}}}))
	}
	count := func(want int) []*wire.Revocation {
		t.Helper()
		all, err := session.Revocations(b.m.View(b.kv))
		if err != nil || len(all) != want {
			t.Fatalf("%d revoked, want %d: %v", len(all), want, err)
		}
		return all
	}
	key := &wire.Revocation{Key: bytes.Repeat([]byte{7}, 32), Node: "c1", Role: "client", At: 9}
	serial := &wire.Revocation{Serial: "abc"}
	node := &wire.Revocation{Node: "n1", Role: "chunkserver", IssuedUntil: 5}
	for what, c := range map[string]struct {
		w    *wire.Revocation
		want string
	}{
		"nothing":         {&wire.Revocation{}, "invalid argument"},
		"half a key":      {&wire.Revocation{Key: []byte{1}}, "invalid argument"},
		"both":            {&wire.Revocation{Key: key.Key, Serial: "a"}, "invalid argument"},
		"a key":           {key, "ok"},
		"the same again":  {key, "ok"},
		"a serial number": {serial, "ok"},
		"a node":          {node, "ok"},
	} {
		if got := revoke(false, c.w); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	if got := revoke(false); got != "invalid argument" {
		t.Errorf("none: %s", got)
	}
	all := count(3)
	if !bytes.Equal(all[0].Key, key.Key) || all[0].Node != "c1" || all[1].Serial != "abc" || all[2].Node != "n1" || all[2].IssuedUntil != 5 {
		t.Errorf("revoked: %v", all)
	}
	if got := revoke(true, serial); got != "ok" {
		t.Errorf("undo: %s", got)
	}
	if got := revoke(true, serial); got != "not found" {
		t.Errorf("undo again: %s", got)
	}
	count(2)

	for n := 0; n < session.MaxRevocations-2; n += session.MaxRevoke / 2 {
		var some []*wire.Revocation
		for i := range session.MaxRevoke / 2 {
			some = append(some, &wire.Revocation{Serial: fmt.Sprintf("%06x", n+i)})
		}
		want := "ok"
		if n+len(some) > session.MaxRevocations-2 {
			want = "too large"
		}
		if got := revoke(false, some...); got != want {
			t.Fatalf("after %d: %s, want %s", n, got, want)
		}
	}
	b.check()
}
