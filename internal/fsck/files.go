package fsck

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxStripes bounds the stripes of a check of a path.
	maxStripes = 1 << 22
	// rangeGap is how many stripes of other files may lie between two of the path that are
	// checked on a device in one range.
	rangeGap = 256
	// maxRanges bounds the lost ranges that the report lists for a file.
	maxRanges = 64
	// extentPage is how many extents one request returns.
	extentPage = 1000
)

// File is a file that has lost bytes, by the findings.
type File struct {
	Path   string
	Inode  moraine.InodeID
	Ranges []Range
	More   bool // it has lost more ranges than Ranges lists
}

// Range is a range of a file, in bytes.
type Range struct{ Offset, Bytes uint64 }

// chosen are the stripes of the files below a path.
type chosen struct {
	stripes map[moraine.StripeID]moraine.LayoutVersion
	devices map[moraine.DeviceID][]moraine.StripeID
	chunks  uint64
	bytes   uint64
}

// choose finds the stripes of the files below a path. It skips what is removed meanwhile, and
// may miss new files.
func (c *Checker) choose(ctx context.Context, path string) (*chosen, error) {
	all := &chosen{stripes: make(map[moraine.StripeID]moraine.LayoutVersion), devices: make(map[moraine.DeviceID][]moraine.StripeID)}
	err := c.eachPage(ctx, path, func(_ string, p *wire.ExtentsReply) error {
		for _, s := range p.Stripes {
			all.add(s)
		}
		if len(all.stripes) > maxStripes {
			return &moraine.Error{Op: "fsck", Ref: path, Kind: moraine.TooLarge,
				Err: fmt.Errorf("more than %d stripes are below it: name a directory further down, or none, to check all", maxStripes)}
		}
		return nil
	})
	return all, err
}

// moved counts the stripes whose layout changed since they were chosen. The check has seen a
// chunk that a repair or a rebalance moved on neither device.
func (c *Checker) moved(ctx context.Context) error {
	changed := make(map[moraine.StripeID]struct{})
	err := c.eachPage(ctx, c.cfg.Path, func(_ string, p *wire.ExtentsReply) error {
		for _, s := range p.Stripes {
			id := moraine.StripeID(s.Id)
			if version, ok := c.chosen.stripes[id]; ok && version != moraine.LayoutVersion(s.Version) {
				changed[id] = struct{}{}
			}
		}
		return nil
	})
	if err == nil && len(changed) > 0 {
		c.report.NotChecked = append(c.report.NotChecked, NotChecked{
			Why: fmt.Sprintf("chunks of %d stripes were repaired or moved elsewhere meanwhile: check again, or check all, without a path", len(changed))})
	}
	return err
}

func (a *chosen) add(s *wire.Stripe) {
	id := moraine.StripeID(s.Id)
	if _, ok := a.stripes[id]; ok {
		return
	}
	a.stripes[id] = moraine.LayoutVersion(s.Version)
	scheme := moraine.Scheme{K: uint8(s.Scheme.GetK()), M: uint8(s.Scheme.GetM())}
	for _, chunk := range s.Chunks {
		device := moraine.DeviceID(chunk.Device)
		a.devices[device] = append(a.devices[device], id)
		a.chunks++
		if scheme.K > 0 {
			a.bytes += uint64(scheme.ChunkLen(int64(s.Length)))
		}
	}
}

// ranges returns the stripe ranges of a device that contain chunks of the chosen stripes, in
// order.
func (a *chosen) ranges(device moraine.DeviceID) []slice {
	stripes := slices.Clone(a.devices[device])
	slices.Sort(stripes)
	var out []slice
	for _, s := range stripes {
		if n := len(out); n > 0 && uint64(s) < out[n-1].to+rangeGap {
			out[n-1].to = uint64(s) + 1
			continue
		}
		out = append(out, slice{from: uint64(s), to: uint64(s) + 1})
	}
	return out
}

// eachPage calls fn with the extents of each file below a path, page by page.
func (c *Checker) eachPage(ctx context.Context, path string, fn func(path string, p *wire.ExtentsReply) error) error {
	return c.deps.Walk(ctx, path, func(name string, a client.Attr) error {
		if !a.IsRegular() {
			return nil
		}
		for offset := uint64(0); ; {
			resp, err := c.deps.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{
				Inode: uint64(a.Inode()), Offset: offset, Limit: extentPage}}})
			if moraine.KindOf(err) == moraine.NotFound {
				return nil
			}
			if err != nil {
				return err
			}
			p := resp.GetExtents()
			if err := fn(name, p); err != nil {
				return err
			}
			if !p.GetMore() || len(p.Extents) == 0 {
				return nil
			}
			last := p.Extents[len(p.Extents)-1]
			offset = last.Offset + last.Length
		}
	})
}

// nameLost finds the files of the lost stripes.
func (c *Checker) nameLost(ctx context.Context) error {
	r := c.report
	if len(r.LostStripes) == 0 || c.deps.Walk == nil {
		return nil
	}
	lost := make(map[uint64]struct{}, len(r.LostStripes))
	for _, s := range r.LostStripes {
		lost[uint64(s)] = struct{}{}
	}
	root := c.cfg.Path
	root = cmp.Or(root, "/")
	return c.eachPage(ctx, root, func(path string, p *wire.ExtentsReply) error {
		for _, e := range p.Extents {
			if _, ok := lost[e.Stripe]; ok && e.Stripe != 0 {
				r.lose(path, moraine.InodeID(p.GetAttr().GetInode()), Range{e.Offset, e.Length})
			}
		}
		return nil
	})
}

// lose records a lost range of a file. The ranges of one file must come consecutively.
func (r *Report) lose(path string, inode moraine.InodeID, lost Range) {
	if n := len(r.LostFiles); n == 0 || r.LostFiles[n-1].Path != path {
		r.LostFiles = append(r.LostFiles, File{Path: path, Inode: inode})
	}
	f := &r.LostFiles[len(r.LostFiles)-1]
	switch n := len(f.Ranges); {
	case n > 0 && f.Ranges[n-1].Offset+f.Ranges[n-1].Bytes == lost.Offset:
		f.Ranges[n-1].Bytes += lost.Bytes
	case n == maxRanges:
		f.More = true
	default:
		f.Ranges = append(f.Ranges, lost)
	}
}
