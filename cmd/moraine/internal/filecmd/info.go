package filecmd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// fileInfo is where the bytes of a file are.
type fileInfo struct {
	Path       jsonname.Name `json:"path"`
	Inode      string        `json:"inode"`
	Size       uint64        `json:"size"`
	Generation uint64        `json:"generation"`
	Level      string        `json:"level"`
	// StripeBytes, InlineBytes, ObjectBytes and HoleBytes are the parts of Size that are on
	// chunkservers, in the metadata, only in the object tier, and nowhere, since nothing was
	// written there.
	StripeBytes uint64 `json:"stripe_bytes"`
	InlineBytes uint64 `json:"inline_bytes"`
	ObjectBytes uint64 `json:"object_bytes"`
	HoleBytes   uint64 `json:"hole_bytes"`
	// ByLevel are StripeBytes by the lowest level of a chunk of the stripe.
	ByLevel map[string]uint64 `json:"bytes_by_level"`
	Devices []deviceShare     `json:"devices"`
	Extents []extentInfo      `json:"extents"`
}

// deviceShare is what a device has of a file.
type deviceShare struct {
	Device string `json:"device"`
	Host   string `json:"host"`
	Alive  bool   `json:"alive"`
	Chunks int    `json:"chunks"`
}

// extentInfo is a range of a file, and what has its bytes: a stripe, an object or the metadata.
type extentInfo struct {
	Offset uint64      `json:"offset"`
	Length uint64      `json:"length"`
	Stripe string      `json:"stripe,omitempty"`
	Scheme string      `json:"scheme,omitempty"`
	Chunks []chunkInfo `json:"chunks,omitempty"`
	Bucket string      `json:"bucket,omitempty"`
	Object string      `json:"object,omitempty"` // its key
	Inline string      `json:"inline,omitempty"` // number of the content in the metadata
	// From is the offset of the bytes in the stripe, the object or that content.
	From uint64 `json:"from"`
}

// chunkInfo is where one chunk of a stripe is.
type chunkInfo struct {
	Device string `json:"device"`
	Host   string `json:"host"`
	Level  string `json:"level"`
}

func newInfoCommand(env *cli.Env) *cobra.Command {
	var extents bool
	cmd := &cobra.Command{
		Use:     "info PATH...",
		GroupID: cli.GroupFiles,
		Short:   "Show where the bytes of a file are: extents, levels, devices, objects",
		Long: `Show how many bytes of a file are in stripes, in objects and in holes, at which level they are, and
which devices have its chunks. PATH is an address, or the path of a file on a mount.`,
		Example: `  moraine info moraine:///datasets/shard-0001
  moraine info /mnt/moraine/datasets/shard-0001 --extents`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.Each(cmd.Context(), args, parseMounted, func(c *cli.Connection, l cli.Location) error {
				info, err := infoOf(cmd.Context(), c.Client, l)
				if err != nil {
					return err
				}
				if env.Global.JSON {
					return cli.PrintJSON(env.Out, info)
				}
				printInfo(env, info, extents)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&extents, "extents", false, "list each range of the file (--json always does)")
	return cmd
}

// parseMounted reads an address, or the path of a file on a mount, which has one too.
func parseMounted(arg string) (cli.Location, error) {
	l, err := cli.ParseLocation(arg)
	if err != nil || l.Remote {
		return l, err
	}
	path, err := filepath.Abs(arg)
	if err != nil {
		return l, err
	}
	m, err := fuse.MountOf(path)
	if err != nil {
		return l, err
	}
	if l, err = cli.ParseRemote(m.Source); err != nil {
		return l, err
	}
	if below := strings.Trim(strings.TrimPrefix(path, m.Dir), "/"); below != "" {
		l = l.Join(below)
	}
	return l, nil
}

// extentPage is how many extents one answer has.
const extentPage = 1000

// infoOf reads the extents of a file, page by page. If the file changes meanwhile, it begins again.
func infoOf(ctx context.Context, c *client.Client, l cli.Location) (info fileInfo, err error) {
	hosts, err := devices(ctx, c)
	if err != nil {
		return fileInfo{}, err
	}
	for {
		attr, err := c.Stat(ctx, l.Path)
		switch {
		case err != nil:
			return fileInfo{}, err
		case !attr.IsRegular():
			return fileInfo{}, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("it is a %s: only a file has bytes", describeAttr("", attr).Type)}
		}
		e := describeAttr(l.String(), attr)
		info = fileInfo{Path: e.Path, Inode: e.Inode, Size: e.Size, Generation: e.Generation, Level: e.Level, ByLevel: map[string]uint64{}, Devices: []deviceShare{}, Extents: []extentInfo{}}
		r := extentReader{fileInfo: &info, hosts: hosts, stripes: map[uint64]*wire.Stripe{}}
		if err = r.read(ctx, c, attr); moraine.KindOf(err) != moraine.Stale {
			return info, err
		}
	}
}

// devices returns the devices of the cluster, by id.
func devices(ctx context.Context, c *client.Client) (map[uint32]deviceShare, error) {
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}})
	if err != nil {
		return nil, err
	}
	all := map[uint32]deviceShare{}
	for _, h := range resp.GetTopology().GetHosts() {
		for _, d := range h.Devices {
			all[d.Id] = deviceShare{Device: fmt.Sprint(d.Id), Host: h.Id, Alive: h.Alive && d.Alive}
		}
	}
	return all, nil
}

// extentReader gathers the extents of one generation.
type extentReader struct {
	*fileInfo
	hosts   map[uint32]deviceShare
	stripes map[uint64]*wire.Stripe // that the file has
}

func (r *extentReader) read(ctx context.Context, c *client.Client, attr client.Attr) error {
	for offset := uint64(0); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{
			Inode: uint64(attr.Inode()), Offset: offset, Limit: extentPage, Generation: r.Generation}}})
		if err != nil {
			return err
		}
		p := resp.GetExtents()
		objects := map[uint64]*wire.Object{}
		for _, s := range p.Stripes {
			r.stripes[s.Id] = s
		}
		for _, o := range p.Objects {
			objects[o.Id] = o
		}
		for _, e := range p.Extents {
			r.add(e, objects)
			offset = e.Offset + e.Length
		}
		if !p.More || len(p.Extents) == 0 {
			break
		}
	}
	r.HoleBytes = r.Size - min(r.Size, r.StripeBytes+r.InlineBytes+r.ObjectBytes)
	shares := map[uint32]deviceShare{}
	for _, s := range r.stripes {
		for _, c := range s.Chunks {
			share := r.device(c.Device)
			share.Chunks = shares[c.Device].Chunks + 1
			shares[c.Device] = share
		}
	}
	r.Devices = slices.AppendSeq(r.Devices[:0], maps.Values(shares))
	slices.SortFunc(r.Devices, func(a, b deviceShare) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Device, b.Device))
	})
	return nil
}

// add adds an extent.
func (r *extentReader) add(e *wire.Extent, objects map[uint64]*wire.Object) {
	x := extentInfo{Offset: e.Offset, Length: e.Length, From: e.StripeOffset}
	// A file that was cut short may keep an extent past its end.
	inside := min(e.Length, r.Size-min(r.Size, e.Offset))
	if s := r.stripes[e.Stripe]; e.Stripe != 0 && s != nil {
		x.Stripe, x.Scheme = moraine.StripeID(s.Id).String(), moraine.Scheme{K: uint8(s.GetScheme().GetK()), M: uint8(s.GetScheme().GetM())}.String()
		lowest := moraine.NVMe
		for _, c := range s.Chunks {
			lowest = min(lowest, moraine.Level(c.Level))
			x.Chunks = append(x.Chunks, chunkInfo{Device: fmt.Sprint(c.Device), Host: r.device(c.Device).Host, Level: moraine.Level(c.Level).String()})
		}
		r.StripeBytes += inside
		r.ByLevel[lowest.String()] += inside
	} else if e.Inline != 0 {
		x.Inline = moraine.InlineID(e.Inline).String()
		r.InlineBytes += inside
	} else {
		x.Bucket, x.Object = objects[e.Object].GetBucket(), objects[e.Object].GetKey()
		r.ObjectBytes += inside
	}
	r.Extents = append(r.Extents, x)
}

// device returns a device. One that the cluster has forgotten has no host.
func (r *extentReader) device(id uint32) deviceShare {
	return cmp.Or(r.hosts[id], deviceShare{Device: fmt.Sprint(id)})
}

func printInfo(env *cli.Env, i fileInfo, extents bool) {
	env.Note("%s", i.Path)
	env.Note("  size        %s (%d bytes), inode %s, generation %d", cli.Size(i.Size), i.Size, i.Inode, i.Generation)
	env.Note("  level       %s", i.Level)
	for _, level := range slices.Sorted(maps.Keys(i.ByLevel)) {
		env.Note("  in stripes  %s at level %s", cli.Size(i.ByLevel[level]), level)
	}
	if i.InlineBytes > 0 {
		env.Note("  in metadata %s", cli.Size(i.InlineBytes))
	}
	if i.ObjectBytes > 0 {
		env.Note("  in objects  %s", cli.Size(i.ObjectBytes))
	}
	if i.HoleBytes > 0 {
		env.Note("  in holes    %s", cli.Size(i.HoleBytes))
	}
	for _, d := range i.Devices {
		down := ""
		if !d.Alive {
			down = " (down)"
		}
		env.Note("  device      %s of %s%s: %d chunks", d.Device, d.Host, down, d.Chunks)
	}
	if !extents {
		return
	}
	rows := make([]table.Row, len(i.Extents))
	for n, e := range i.Extents {
		rows[n] = table.Row{e.Offset, e.Length, e.where(), e.From, e.on()}
	}
	cli.PrintTable(env.Out, table.Row{"offset", "length", "in", "from", "on"}, rows)
}

// where names the stripe, content or object of an extent.
func (e extentInfo) where() string {
	if e.Stripe != "" {
		return "stripe " + e.Stripe + " (" + e.Scheme + ")"
	}
	if e.Inline != "" {
		return "metadata"
	}
	return "object " + e.Object
}

// on lists the devices of an extent's stripe, or names its bucket.
func (e extentInfo) on() string {
	if e.Stripe == "" {
		return e.Bucket
	}
	var places []string
	for _, c := range e.Chunks {
		places = append(places, c.Host+"/"+c.Device)
	}
	return strings.Join(places, " ")
}
