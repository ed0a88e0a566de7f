package record

// Which partition has what is the routing, and its epoch is a number that rises
// with every change of it. A mutation that was routed by another epoch than the
// present one is refused when it is applied: between its proposal and then the
// epoch may have risen. There is one partition today, and what a rise does is that
// clients ask anew.

const routingVersion = 1

func EncodeRouting(epoch uint64) []byte { return PutUvarint([]byte{routingVersion}, epoch) }

func DecodeRouting(b []byte) (uint64, error) {
	d := Dec{B: b}
	d.Version(routingVersion)
	epoch := d.Uvarint()
	return epoch, d.End("routing")
}
