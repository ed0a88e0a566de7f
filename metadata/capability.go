package metadata

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/capability"
	"github.com/morainefs/moraine/transport/wire"
)

// permit signs a capability for the caller's session and node. It is valid as long as a session
// token, so that the same keys outlive both. expires is its end in wall clock seconds.
func (s *signer) permit(c *lead.Call, now time.Time, claims *wire.CapabilityClaims) (b []byte, expires int64, err error) {
	key := s.current()
	if key == nil {
		return nil, 0, &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("there is no key to sign capabilities with yet")}
	}
	claims.Cluster, claims.Incarnation = s.cluster.UUID[:], uint64(s.cluster.Incarnation)
	claims.Key, claims.Expires = key.Id, now.Add(s.life).Unix()
	claims.Session = c.Req.Session
	if c.IsChunkserver() {
		claims.Node = c.Caller.Node
	}
	b, err = capability.Sign(key.private, claims)
	return b, claims.Expires, err
}

// permits signs the callers' capabilities.
type permits struct {
	*lead.Term
	tokens *signer
}

// permitWrites signs the capability of the session's live grant that covers a stripe. It permits
// writing the grant's stripes, with the number and length of chunks in the grant's record.
func (p *permits) permitWrites(c *lead.Call, stripe uint64) ([]byte, int64, error) {
	var g fleet.GrantInfo
	var live bool
	err := p.Store.View(func(r kvtx.Reader, _ uint64) (err error) {
		g, live, err = fleet.LiveGrant(p.Machine.View(r), moraine.StripeID(stripe))
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if !live || g.Session != moraine.SessionID(c.Req.Session) {
		return nil, 0, &moraine.Error{Ref: moraine.StripeID(stripe).String(), Kind: moraine.Stale,
			Err: fmt.Errorf("no live grant of the session covers the stripe")}
	}
	return p.tokens.permit(c, p.Clock.Now(), &wire.CapabilityClaims{
		Right: wire.CapabilityRight_CAPABILITY_RIGHT_WRITE, Chunks: g.Chunks, Length: g.ChunkLength,
		Stripes: []*wire.StripeRange{{First: uint64(g.First), Count: uint64(g.Count)}},
	})
}

// permitRepairs signs the capability to repair the chunks of intents.
func (p *permits) permitRepairs(c *lead.Call, intents []*wire.Intent) ([]byte, error) {
	if len(intents) == 0 {
		return nil, nil
	}
	b, _, err := p.tokens.permit(c, p.Clock.Now(), &wire.CapabilityClaims{
		Right: wire.CapabilityRight_CAPABILITY_RIGHT_REPAIR, Intents: intents})
	return b, err
}

// permitJobs adds to leased jobs the capabilities that their holder needs to repair the stripes.
func (p *permits) permitJobs(c *lead.Call, jobs *wire.JobsReply) (err error) {
	for _, j := range jobs.GetJobs() {
		for _, task := range j.GetRepairs() {
			if task.Capability, err = p.permitRepairs(c, task.Intents); err != nil {
				return err
			}
		}
	}
	return nil
}

// permitStripes adds to each stripe of a list the capability to read it.
func (p *permits) permitStripes(c *lead.Call, stripes []*wire.Stripe) error {
	ids := make([]uint64, len(stripes))
	for n, s := range stripes {
		ids[n] = s.Id
	}
	now := p.Clock.Now()
	for ranges := range slices.Chunk(capability.Ranges(ids), capability.MaxRanges) {
		claims := &wire.CapabilityClaims{Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ, Stripes: ranges}
		b, _, err := p.tokens.permit(c, now, claims)
		if err != nil {
			return err
		}
		for _, s := range stripes {
			if capability.CoversStripe(claims, s.Id) {
				s.Capability = b
			}
		}
	}
	return nil
}

// getExtents answers a page of extents. For a caller confined to a directory, or to its jobs, it
// adds capabilities to read the bytes.
func (l *leader) getExtents(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	if err := l.mayReadForJob(ctx, c); err != nil {
		return nil, err
	}
	resp, err := l.read(ctx, c)
	if err != nil || resp.GetError() != nil || !l.needsCapabilities(c) {
		return resp, err
	}
	return resp, l.permits.permitReads(c, resp.GetExtents())
}

// needsCapabilities reports whether a caller's credentials do not admit it to
// every stripe. The caller is a server, or its session token is limited to a
// directory.
func (l *leader) needsCapabilities(c *lead.Call) bool {
	return l.confined(c) && (c.IsChunkserver() || c.Req.Session != 0)
}

// confined reports whether a caller is confined to a directory or, like a chunkserver, to its jobs.
func (l *leader) confined(c *lead.Call) bool {
	if c.IsChunkserver() {
		return true
	}
	if c.Req.Session == 0 {
		return c.Caller.Scope != "/"
	}
	ses, err := l.sessions.live(c.Req.Session)
	return err != nil || !ses.all
}

// reportBadChunks takes reports of bad chunks. A confined caller must prove that it may read the
// chunks; the leader ignores its other reports. A chunkserver may report anything about its own
// devices. What a client reports is first verified by the chunkserver that has the chunk.
func (l *leader) reportBadChunks(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	confined, now, v := l.confined(c), l.Clock.Now().Unix(), l.fleet.Topology.View()
	req := proto.CloneOf(c.Req)
	op := req.GetReportBadChunks()
	op.Chunks = slices.DeleteFunc(op.Chunks, func(b *wire.BadChunk) bool {
		shown := b.Capability
		b.Capability = nil // the log does not need it
		itself := c.IsChunkserver() && v.MayReport(c, b.Device) == nil
		return confined && !itself && !l.tokens.permits(shown, c.Req.Session, b, now)
	})
	if l.fleet.Unverified(c) {
		return &wire.MetaResponse{Result: &wire.MetaResponse_Done{Done: &wire.Done{}}}, l.fleet.Suspect(c, op.Chunks)
	}
	return l.Propose(ctx, c.Caller, req)
}

// permits reports whether a capability of a session is valid now and covers part of a chunk.
func (s *signer) permits(b []byte, session uint64, chunk *wire.BadChunk, now int64) bool {
	claims, err := capability.Verify(b, func(id uint64) ed25519.PublicKey {
		for _, k := range *s.keys.Load() {
			if k.Id == id {
				return k.PublicKey
			}
		}
		return nil
	})
	return err == nil && claims.Session == session && session != 0 && now < claims.Expires &&
		claims.Incarnation == uint64(s.cluster.Incarnation) && capability.CoversSome(claims, chunk.Stripe, chunk.Index)
}

// permitReads signs capabilities for everything in a page of extents: for whole stripes, and for
// the ranges used of objects and of limited stripes.
func (p *permits) permitReads(c *lead.Call, page *wire.ExtentsReply) error {
	var stripes []uint64
	var limited [][]*wire.ChunkPart
	for _, s := range page.Stripes {
		if slices.Contains(page.Limited, s.Id) {
			limited = append(limited, partsOf(page, s))
		} else {
			stripes = append(stripes, s.Id)
		}
	}
	slices.SortFunc(limited, func(a, b []*wire.ChunkPart) int { return cmp.Compare(a[0].Stripe, b[0].Stripe) })
	objects := capability.ObjectRanges(page.Extents)
	ranges, now := capability.Ranges(stripes), p.Clock.Now()
	for len(ranges)+len(objects)+len(limited) > 0 {
		claims := &wire.CapabilityClaims{Right: wire.CapabilityRight_CAPABILITY_RIGHT_READ, Objects: objects, Inode: page.GetAttr().GetInode()}
		n := min(len(ranges), capability.MaxRanges)
		claims.Stripes, ranges, objects = ranges[:n], ranges[n:], nil
		for len(limited) > 0 && (len(claims.Parts) == 0 || len(claims.Parts)+len(limited[0]) <= goodParts) {
			claims.Parts, limited = append(claims.Parts, limited[0]...), limited[1:]
		}
		b, expires, err := p.tokens.permit(c, now, claims)
		if err != nil {
			return err
		}
		page.Capabilities, page.CapabilitiesExpire = append(page.Capabilities, b), expires
	}
	return nil
}

// goodParts is the number of chunk parts up to which a capability is small enough for chunkservers
// to cache. A capability is larger only if a single stripe has more parts.
const goodParts = 64

// partsOf returns the chunk parts of a stripe that the extents of a page use.
func partsOf(page *wire.ExtentsReply, s *wire.Stripe) []*wire.ChunkPart {
	var named []*wire.Extent
	for _, e := range page.Extents {
		if e.Stripe == s.Id {
			named = append(named, e)
		}
	}
	return capability.Parts(s, named)
}
