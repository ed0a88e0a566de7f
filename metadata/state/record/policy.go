package record

import (
	"cmp"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// Policy has a directory's settings for everything below it; a zero field is inherited.
type Policy struct {
	Flush   wire.FlushPolicy
	Scheme  moraine.Scheme
	Foreign wire.ForeignPolicy
	// Format is what a framework writes there whose directories become steps.
	Format wire.CheckpointFormat
	// QuietMillis is how long such a directory must stay as it is before; 0: as the format needs. It is
	// inherited with Format.
	QuietMillis uint64
	// TrashMillis is how long removed files stay in the trash; 1: they do not go there.
	TrashMillis uint64
	// Levels says which steps of runs go to a level and stay there; in order of level.
	Levels []LevelPolicy
}

// LevelPolicy is one level of the policy of checkpoints.
type LevelPolicy struct {
	Level moraine.Level
	// Every step whose number it divides goes to the level; 0: none by itself.
	Every uint64
	// A step stays while any of these holds it. If none is set all stay.
	KeepLast   uint32
	KeepEvery  uint64
	KeepMillis uint64
	KeepBytes  uint64
	KeepTags   []string
}

const policyVersion = 1

// Encode returns the stored value.
func (p *Policy) Encode() []byte { return p.fields(encoder(16 + 16*len(p.Levels))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (p *Policy) Decode(b []byte) error { return p.fields(decoder(b)).End("policy") }

func (p *Policy) fields(c *codec) *codec {
	c.version(policyVersion)
	oneByte(c, &p.Flush)
	oneByte(c, &p.Scheme.K)
	oneByte(c, &p.Scheme.M)
	oneByte(c, &p.Foreign)
	oneByte(c, &p.Format)
	uvarint(c, &p.QuietMillis)
	uvarint(c, &p.TrashMillis)
	levels := list(c, &p.Levels, 7)
	for i := range levels {
		levels[i].fields(c)
	}
	return c
}

// fields is the level as part of a policy.
func (l *LevelPolicy) fields(c *codec) {
	oneByte(c, &l.Level)
	uvarint(c, &l.Every)
	uvarint(c, &l.KeepLast)
	uvarint(c, &l.KeepEvery)
	uvarint(c, &l.KeepMillis)
	uvarint(c, &l.KeepBytes)
	tags := list(c, &l.KeepTags, 1)
	for i := range tags {
		c.string(&tags[i])
	}
}

// ToWire returns the wire form.
func (p *Policy) ToWire() *wire.Policy {
	w := &wire.Policy{Flush: p.Flush, Foreign: p.Foreign, TrashMillis: p.TrashMillis}
	if p.Scheme.K != 0 {
		w.Scheme = wire.SchemeToWire(p.Scheme)
	}
	if p.Format == 0 && len(p.Levels) == 0 {
		return w
	}
	w.Checkpoint = &wire.CheckpointPolicy{Format: p.Format, QuietMillis: p.QuietMillis}
	for _, l := range p.Levels {
		w.Checkpoint.Levels = append(w.Checkpoint.Levels, &wire.LevelPolicy{Level: uint32(l.Level), Every: l.Every, KeepLast: l.KeepLast,
			KeepEvery: l.KeepEvery, KeepMillis: l.KeepMillis, KeepBytes: l.KeepBytes, KeepTags: l.KeepTags})
	}
	return w
}

// Inherit fills the zero fields of p from the directory above.
func (p *Policy) Inherit(from Policy) {
	p.Flush = cmp.Or(p.Flush, from.Flush)
	if p.Scheme.K == 0 {
		p.Scheme = from.Scheme
	}
	p.Foreign = cmp.Or(p.Foreign, from.Foreign)
	p.TrashMillis = cmp.Or(p.TrashMillis, from.TrashMillis)
	if p.Format == 0 {
		p.Format, p.QuietMillis = from.Format, from.QuietMillis
	}
	if len(p.Levels) == 0 {
		p.Levels = from.Levels
	}
}

// Zero reports whether the policy sets nothing.
func (p *Policy) Zero() bool {
	return p.Flush == 0 && p.Scheme.K == 0 && p.Foreign == 0 && p.TrashMillis == 0 && p.Format == 0 && len(p.Levels) == 0
}

// Whole reports whether no field is left to inherit.
func (p *Policy) Whole() bool {
	return p.Flush != 0 && p.Scheme.K != 0 && p.Foreign != 0 && p.TrashMillis != 0 && p.Format != 0 && len(p.Levels) > 0
}
