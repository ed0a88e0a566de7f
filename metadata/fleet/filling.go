package fleet

import "cmp"

// Filling is one device, as moves between devices look at it. used is what is on it,
// without what is dead and not deleted yet, and with what was planned to come and go.
type Filling struct {
	Id             uint32
	Host, Rack     string
	Capacity, Used uint64
	Gives, Takes   bool
}

func (f *Filling) Fill() float64 { return float64(f.Used) / float64(max(f.Capacity, 1)) }

// After is the fill with n bytes more, or, where n is negative, less.
func (f *Filling) After(n int64) float64 {
	return float64(max(int64(f.Used)+n, 0)) / float64(max(f.Capacity, 1))
}

func ByFill(x, y *Filling) int { return cmp.Compare(x.Fill(), y.Fill()) }
