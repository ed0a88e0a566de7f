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
func (p *Policy) Encode() []byte {
	return []byte{policyVersion, byte(p.Flush), p.Scheme.K, p.Scheme.M, byte(p.Foreign)}
}

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (p *Policy) Decode(b []byte) error {
	d := Dec{B: b}
	d.Version(policyVersion)
	p.Flush = wire.FlushPolicy(d.Byte())
	p.Scheme = moraine.Scheme{K: d.Byte(), M: d.Byte()}
	p.Foreign = wire.ForeignPolicy(d.Byte())
	return d.End("policy")
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
