package stripeio

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// policyKept is how long it is known what the policy of a directory says; what is
	// written later heeds a change of it.
	policyKept = 30 * time.Second
	// maxPolicies bounds the directories of which it is known.
	maxPolicies = 4096
)

// knownPolicies is what schemes the policies of directories say. Stripe numbers are shared
// by all files that are to have the same scheme; which one that is must be known before one
// is taken, or a file would get what the policy of another directory says. Nothing is asked
// as long as no directory has a policy, which each grant tells.
type knownPolicies struct {
	some bool
	of   map[moraine.InodeID]knownPolicy // by directory, or by inode where that is not known
}

type knownPolicy struct {
	scheme moraine.Scheme // zero: it says nothing
	until  time.Time
}

// resolve returns the key of the grants that are good for what is asked, with the scheme
// that the policy says; known is false where that has to be asked for.
func (k *knownPolicies) resolve(asked GrantKey, inode moraine.InodeID, now time.Time) (key GrantKey, known bool) {
	key = GrantKey{Tenant: asked.Tenant, Scheme: asked.Scheme}
	if key.Scheme.K != 0 || !k.some {
		return key, true
	}
	p, ok := k.of[policyPlace(asked, inode)]
	if !ok || now.After(p.until) {
		return key, false
	}
	key.Scheme = p.scheme
	return key, true
}

// policyPlace is whose policy decides.
func policyPlace(asked GrantKey, inode moraine.InodeID) moraine.InodeID {
	if asked.Dir != 0 {
		return asked.Dir
	}
	return inode
}

// grantPlace is what a grant is asked for: where the policy says the scheme, whose policy it
// is, as a file that has no name yet is in no directory.
func grantPlace(asked GrantKey, inode moraine.InodeID) moraine.InodeID {
	if asked.Scheme.K != 0 {
		return inode
	}
	return policyPlace(asked, inode)
}

// note keeps what the policy of a place says.
func (k *knownPolicies) note(at moraine.InodeID, scheme moraine.Scheme, now time.Time) {
	if len(k.of) >= maxPolicies {
		clear(k.of)
	}
	if k.of == nil {
		k.of = make(map[moraine.InodeID]knownPolicy)
	}
	k.of[at] = knownPolicy{scheme, now.Add(policyKept)}
}

// learn takes in what a grant tells.
func (k *knownPolicies) learn(asked GrantKey, inode moraine.InodeID, g *grant, now time.Time) {
	if k.some = g.policies; !k.some {
		clear(k.of)
		return
	}
	if asked.Scheme.K == 0 {
		k.note(policyPlace(asked, inode), g.key.Scheme, now)
	}
}

// effective returns the key of the grants that are good for what is asked; it asks the
// service what the policy says where that is not known.
func (p *grantPool) effective(ctx context.Context, asked GrantKey, inode moraine.InodeID) (GrantKey, error) {
	p.mu.Lock()
	key, known := p.policies.resolve(asked, inode, p.c.clock.Now())
	p.mu.Unlock()
	if known {
		return key, nil
	}
	at := policyPlace(asked, inode)
	reply, err := p.c.GetPolicy(ctx, p.c.meta.Place(at))
	switch {
	case retry.IsKind(err, moraine.NotFound), retry.IsKind(err, moraine.PermissionDenied):
		// It is gone, or out of sight: the grant, which the service may give all the same,
		// tells what its scheme is.
	case err != nil:
		return key, retry.Wrap("get policy", at.String(), err)
	}
	key.Scheme = wire.SchemeFromWire(reply.GetEffective().GetScheme())
	p.mu.Lock()
	p.policies.note(at, key.Scheme, p.c.clock.Now())
	p.mu.Unlock()
	return key, nil
}

// GetPolicy returns an inode's own policy and the one in effect for it.
func (e *Engine) GetPolicy(ctx context.Context, inode moraine.InodeID) (*wire.PolicyReply, error) {
	resp, err := e.meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{
		Inode: uint64(inode)}}})
	if err == nil && resp.GetPolicy() == nil {
		err = retry.BadReply("get policy")
	}
	return resp.GetPolicy(), err
}
