package fleet

import "cmp"

// Filling is one device in the view of rebalancing. Used are its bytes, without dead chunks that
// are not deleted yet, and with planned moves.
type Filling struct {
	Id             uint32
	Host, Rack     string
	Capacity, Used uint64
	Gives, Takes   bool
}

// Fill returns the used part of the device.
func (f *Filling) Fill() float64 { return float64(f.Used) / float64(max(f.Capacity, 1)) }

// After returns the fill with n more bytes; n may be negative.
func (f *Filling) After(n int64) float64 {
	return float64(max(int64(f.Used)+n, 0)) / float64(max(f.Capacity, 1))
}

// ByFill orders devices by their fill.
func ByFill(x, y *Filling) int { return cmp.Compare(x.Fill(), y.Fill()) }
