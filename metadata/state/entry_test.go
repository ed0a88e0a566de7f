package state_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"google.golang.org/protobuf/proto"
)

func tickBytes(t testing.TB, millis uint64) []byte {
	t.Helper()
	b, err := proto.Marshal(&statepb.Command{Version: 1, Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: millis}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEntryRoundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 3, 300} {
		var raw [][]byte
		for i := range n {
			raw = append(raw, tickBytes(t, uint64(i)))
		}
		cmds, err := state.DecodeEntry(state.EncodeEntry(raw))
		if err != nil || len(cmds) != n {
			t.Fatalf("%d commands: %d, %v", n, len(cmds), err)
		}
		for i, c := range cmds {
			if c.GetTick().GetMillis() != uint64(i) {
				t.Errorf("command %d is %v", i, c)
			}
		}
	}
}

// The decoder detects any flipped bit and any cut.
func TestDamagedEntry(t *testing.T) {
	good := state.EncodeEntry([][]byte{tickBytes(t, 1), tickBytes(t, 2)})
	for n := range good {
		if _, err := state.DecodeEntry(good[:n]); !errors.Is(err, moraine.Corrupt) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
		for bit := range 8 {
			b := bytes.Clone(good)
			b[n] ^= 1 << bit
			if _, err := state.DecodeEntry(b); !errors.Is(err, moraine.Corrupt) {
				t.Errorf("bit %d of byte %d flipped: %v", bit, n, err)
			}
		}
	}
	newer := bytes.Clone(good[:len(good)-4])
	newer[4] = 2
	newer = binary.LittleEndian.AppendUint32(newer, crc32.Checksum(newer, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := state.DecodeEntry(newer); !errors.Is(err, moraine.NewerFormat) {
		t.Errorf("a newer version: %v", err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(state.EncodeEntry(nil))
	f.Add(state.EncodeEntry([][]byte{tickBytes(f, 1)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		// A valid checksum lets the fuzzer past the first check.
		sealed := binary.LittleEndian.AppendUint32(bytes.Clone(b), crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		for _, in := range [][]byte{b, sealed} {
			cmds, err := state.DecodeEntry(in)
			if err != nil && cmds != nil {
				t.Error("commands beside an error")
			}
		}
	})
}

// An unknown command stops the node, because the node must not guess.
func TestUnknownCommandStops(t *testing.T) {
	b := newBench(t)
	for what, cmd := range map[string]*statepb.Command{
		"no operation":       {Version: 1},
		"a newer version":    {Version: 2, Op: &statepb.Command_Tick{Tick: &statepb.Tick{}}},
		"an unknown request": {Version: 1, Op: &statepb.Command_Request{}},
		"a feature level past this build's": {Version: 1, Op: &statepb.Command_SetFeatureLevel{
			SetFeatureLevel: &statepb.SetFeatureLevel{Level: moraine.FeatureLevel + 1}}},
	} {
		kv := b.kv.Clone()
		if _, err := b.m.Apply(kv, 9, cmd); err == nil {
			t.Errorf("%s was applied", what)
		}
		if d := statetest.Diff(kv, b.kv); d != "" {
			t.Errorf("%s wrote: %s", what, d)
		}
	}
}

var updateSums = flag.Bool("state.sums", false, "rewrite the sums of the golden logs, not the logs")

var rewriteLogs = flag.Bool("state.logs", false, "rewrite the golden logs")

// goldenLog names a recorded log: each entry follows its length. NAME.sum next to it has the
// resulting sum and number of pairs.
func goldenLog(name string) (log, sum string) {
	return filepath.Join("testdata/golden", name+".log"), filepath.Join("testdata/golden", name+".sum")
}

// The log of a release leads to the same state in every later release.
func TestGoldenLogs(t *testing.T) {
	logs, err := filepath.Glob("testdata/golden/*.log")
	if err != nil || len(logs) == 0 {
		t.Fatalf("no golden log: %v", err)
	}
	for _, file := range logs {
		name := strings.TrimSuffix(filepath.Base(file), ".log")
		t.Run(name, func(t *testing.T) {
			_, sumFile := goldenLog(name)
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b := &bench{t: t, m: state.New(0), kv: statetest.NewKV()}
			for len(raw) > 0 {
				n, used := binary.Uvarint(raw)
				entry := raw[used : used+int(n)]
				raw = raw[used+int(n):]
				b.index++
				b.replay(entry)
			}
			if *updateSums || *rewriteLogs { // no release exists whose build reads the earlier results
				if err := os.WriteFile(sumFile, []byte(b.describe()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(sumFile)
			if err != nil {
				t.Fatal(err)
			}
			if have := b.describe(); have != string(want) {
				t.Errorf("the state is %q, want %q", have, want)
			}
			b.check()
		})
	}
}

// replay applies a recorded entry.
func (b *bench) replay(entry []byte) {
	b.t.Helper()
	cmds, err := state.DecodeEntry(entry)
	if err != nil {
		b.t.Fatal(err)
	}
	batch, err := b.m.Begin(b.kv, b.index)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range cmds {
		if _, err := batch.Apply(c); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := batch.Flush(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) describe() string {
	sum, err := kvtx.Sum(b.m.View(b.kv))
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprintf("sum %016x%016x pairs %d\n", sum[0], sum[1], b.kv.Len())
}

// writeLog makes a golden log of the commands that the bench applied.
func (b *bench) writeLog(name string) {
	log, sum := goldenLog(name)
	var raw []byte
	for _, e := range b.entries {
		raw = append(binary.AppendUvarint(raw, uint64(len(e))), e...)
	}
	for file, content := range map[string][]byte{log: raw, sum: []byte(b.describe())} {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}
