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
	// Arm has the medium fail from now on, as the medium is asked for; Disarm ends
	// that. What took the device out of service stays so until Reopen.
	Arm, Disarm func()
	// Reopen ends the tier as a crash of the process would, or a clean end, and
	// opens it again over what the medium kept.
	Reopen func(t *testing.T) Faulty
	// MayForget says that the medium lied about its syncs and power was cut: what was
	// acknowledged may be missing, or as it was before, and must still not be wrong.
	MayForget bool
}

// RunFaulty puts, reads and deletes chunks of a tier whose medium fails at times,
// and holds what is answered against what may be: a put that was acknowledged is
// there, whole, also after the tier is opened again; one that failed is there whole
// or not at all; what is read is right or an error of the contract. It returns how
// many calls failed, which a caller holds against its medium's rate.
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

// faultModel is what may be on a tier.
type faultModel struct {
	t      *testing.T
	rng    *rand.Rand
	seed   uint64
	round  int
	failed int
	// may has, of each chunk, what may be there: one that was acknowledged alone, or
	// that and those whose puts failed since. A Chunk without data: nothing.
	may  map[moraine.ChunkID][]Chunk
	ever map[moraine.ChunkID][]Chunk // all that was put
	next moraine.LayoutVersion
}

// allowed are the kinds of errors that a medium may be the cause of.
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

// read holds a chunk against what may be there; sound: without an excuse.
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
	require.Fail(m.t, "a chunk is not what it may be", "seed %d, round %d: %s: %v, %s", m.seed, m.round, key, err, describe(h, may))
}

func describe(h tiers.Header, may []Chunk) string {
	text := fmt.Sprintf("version %d, of", h.Version)
	for _, c := range may {
		text += fmt.Sprintf(" %d", c.Header.Version)
	}
	return text
}

// check reads everything of a tier that has been opened again and does not fail.
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
		settled := Chunk{} // what is there now is what is there from now on
		for _, c := range m.known(key) {
			if h, ok := there[key]; ok && c.Data != nil && c.Header == h {
				settled = c
			}
		}
		m.may[key] = []Chunk{settled}
	}
}
