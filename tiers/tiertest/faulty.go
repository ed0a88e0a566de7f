package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers"
)

// Faulty is a tier under test over a medium that fails.
type Faulty struct {
	Tier tiers.Tier
	// Arm makes the medium fail from now on; Disarm ends that. A device that went
	// out of service stays so until Reopen.
	Arm, Disarm func()
	// Reopen ends the tier like a crash of the process, or cleanly, and opens it
	// again over what the medium kept.
	Reopen func(t *testing.T) Faulty
	// MayForget says that the medium ignored syncs and power was cut. An
	// acknowledged chunk may be missing or in its earlier state, but must not be
	// wrong.
	MayForget bool
}

// RunFaulty puts, reads and deletes chunks of a tier whose medium fails at times,
// and compares the answers with the allowed ones. An acknowledged put is there,
// whole, also after a reopen. A failed put is there whole or not at all. A read
// returns the right bytes or an error of the contract. RunFaulty returns how many
// calls failed, which the caller compares with the rate of its medium.
func RunFaulty(t *testing.T, seed uint64, open func(t *testing.T) Faulty) (failed int) {
	m := &faultModel{t: t, rng: rand.New(rand.NewPCG(seed, 3)), may: map[moraine.ChunkID][]Chunk{}, ever: map[moraine.ChunkID][]Chunk{}, seed: seed}
	f := open(t)
	for round := range 4 {
		m.round = round
		f.Arm()
		for range 60 {
			m.step(f.Tier)
		}
		f.Disarm()
		f = f.Reopen(t)
		m.check(f)
	}
	return m.failed
}

// faultModel is what a tier may hold.
type faultModel struct {
	t      *testing.T
	rng    *rand.Rand
	seed   uint64
	round  int
	failed int
	// may holds, for each chunk, its allowed states: the acknowledged one, and
	// those whose puts failed since. A Chunk without data means none.
	may  map[moraine.ChunkID][]Chunk
	ever map[moraine.ChunkID][]Chunk // every put
	next moraine.LayoutVersion
}

// allowed reports whether a failing medium may cause this error.
func (m *faultModel) allowed(err error) bool {
	for _, k := range []moraine.Kind{moraine.IOError, moraine.NoSpace, moraine.Timeout, moraine.Canceled, moraine.Corrupt, moraine.Unavailable} {
		if errors.Is(err, k) {
			return true
		}
	}
	return false
}

func (m *faultModel) step(tier tiers.Tier) {
	key := id(m.rng.IntN(12)+1, 0)
	switch m.rng.IntN(5) {
	case 0, 1:
		m.put(tier, key)
	case 2:
		m.delete(tier, key)
	default:
		m.read(tier, key, false)
	}
}

func (m *faultModel) known(key moraine.ChunkID) []Chunk {
	if c := m.may[key]; c != nil {
		return c
	}
	return []Chunk{{}}
}

func (m *faultModel) put(tier tiers.Tier, key moraine.ChunkID) {
	m.next++
	c := MakeChunk(m.t, key, m.next, 1+m.rng.IntN(60_000), m.seed<<20|uint64(m.next))
	m.ever[key] = append(m.ever[key], c)
	err := c.Put(m.t, tier)
	if err == nil {
		m.may[key] = []Chunk{c}
		return
	}
	m.failed++
	require.True(m.t, m.allowed(err), "seed %d: put: %v", m.seed, err)
	m.may[key] = append(m.known(key), c)
}

func (m *faultModel) delete(tier tiers.Tier, key moraine.ChunkID) {
	err := tier.Delete(m.t.Context(), key, m.next+1)
	if err == nil {
		m.may[key] = []Chunk{{}}
		return
	}
	m.failed++
	require.True(m.t, m.allowed(err), "seed %d: delete: %v", m.seed, err)
	m.may[key] = append(m.known(key), Chunk{})
}

// read compares a chunk with its allowed states. If sound is set, an error is not
// allowed.
func (m *faultModel) read(tier tiers.Tier, key moraine.ChunkID, sound bool) {
	may := m.known(key)
	h, err := tier.Get(m.t.Context(), key, 0, nil)
	var got []byte
	if err == nil {
		got = make([]byte, h.Length)
		h, err = tier.Get(m.t.Context(), key, 0, got)
	}
	if err != nil && !errors.Is(err, moraine.NotFound) {
		m.failed++
		require.True(m.t, !sound && m.allowed(err), "seed %d: read of %s: %v", m.seed, key, err)
		return
	}
	for _, c := range may {
		if (err != nil && c.Data == nil) || (err == nil && c.Data != nil && c.Header == h && crc.Sum(got) == h.CRC) {
			return
		}
	}
	require.Fail(m.t, "a chunk is in no allowed state", "seed %d, round %d: %s: %v, %s", m.seed, m.round, key, err, describe(h, may))
}

func describe(h tiers.Header, may []Chunk) string {
	text := fmt.Sprintf("version %d, of", h.Version)
	for _, c := range may {
		text += fmt.Sprintf(" %d", c.Header.Version)
	}
	return text
}

// check reads everything of a reopened tier that no longer fails.
func (m *faultModel) check(f Faulty) {
	headers, err := f.Tier.List(context.WithoutCancel(m.t.Context()), moraine.ChunkID{}, 1000)
	require.NoError(m.t, err)
	there := map[moraine.ChunkID]tiers.Header{}
	for _, h := range headers {
		there[h.ID] = h
	}
	for n := range 12 {
		key := id(n+1, 0)
		if f.MayForget {
			m.may[key] = append(m.ever[key], Chunk{})
		}
		m.read(f.Tier, key, !f.MayForget)
		settled := Chunk{} // the state found is the only one allowed from now on
		for _, c := range m.known(key) {
			if h, ok := there[key]; ok && c.Data != nil && c.Header == h {
				settled = c
			}
		}
		m.may[key] = []Chunk{settled}
	}
}
