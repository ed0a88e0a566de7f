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
}

const policyVersion = 1

// Encode returns the stored value.
func (p *Policy) Encode() []byte { return p.fields(encoder(5)).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (p *Policy) Decode(b []byte) error { return p.fields(decoder(b)).End("policy") }

func (p *Policy) fields(c *codec) *codec {
	c.version(policyVersion)
	oneByte(c, &p.Flush)
	oneByte(c, &p.Scheme.K)
	oneByte(c, &p.Scheme.M)
	oneByte(c, &p.Foreign)
	return c
}

// ToWire returns the wire form.
func (p *Policy) ToWire() *wire.Policy {
	w := &wire.Policy{Flush: p.Flush, Foreign: p.Foreign}
	if p.Scheme.K != 0 {
		w.Scheme = wire.SchemeToWire(p.Scheme)
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
}

// Whole reports whether no field is left to inherit.
func (p *Policy) Whole() bool { return p.Flush != 0 && p.Scheme.K != 0 && p.Foreign != 0 }
