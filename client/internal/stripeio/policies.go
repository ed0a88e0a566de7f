package stripeio

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// policyKept is how long the client uses a known policy; later writes follow a change.
	policyKept = 30 * time.Second
	// maxPolicies bounds the remembered directories.
	maxPolicies = 4096
)

// knownPolicies are the schemes in the policies of directories. All files with the same scheme
// share stripe numbers. The pool must know the scheme before it takes a number, or a file would
// get that of another directory's policy. While no directory has a policy, which each grant
// reports, the client sends no requests for them.
type knownPolicies struct {
	some bool
	of   map[moraine.InodeID]knownPolicy // by directory, or by inode if that is not known
}

type knownPolicy struct {
	scheme moraine.Scheme // zero: the policy sets none
	until  time.Time
}

// resolve returns the key of the grants for a request, with the policy's scheme. known is false
// if the client must request the policy.
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

// policyPlace returns the inode whose policy applies.
func policyPlace(asked GrantKey, inode moraine.InodeID) moraine.InodeID {
	if asked.Dir != 0 {
		return asked.Dir
	}
	return inode
}

// grantPlace returns the inode for which to request a grant. If the policy decides the scheme
// it is the policy's directory, because a file without a name is in no directory.
func grantPlace(asked GrantKey, inode moraine.InodeID) moraine.InodeID {
	if asked.Scheme.K != 0 {
		return inode
	}
	return policyPlace(asked, inode)
}

// note remembers the policy's scheme for an inode.
func (k *knownPolicies) note(at moraine.InodeID, scheme moraine.Scheme, now time.Time) {
	if len(k.of) >= maxPolicies {
		clear(k.of)
	}
	if k.of == nil {
		k.of = make(map[moraine.InodeID]knownPolicy)
	}
	k.of[at] = knownPolicy{scheme, now.Add(policyKept)}
}

// learn takes over what a grant reports.
func (k *knownPolicies) learn(asked GrantKey, inode moraine.InodeID, g *grant, now time.Time) {
	if k.some = g.policies; !k.some {
		clear(k.of)
		return
	}
	if asked.Scheme.K == 0 {
		k.note(policyPlace(asked, inode), g.key.Scheme, now)
	}
}

// effective returns the key of the grants for a request. If the policy is not known it requests
// it from the service.
func (p *grantPool) effective(ctx context.Context, asked GrantKey, inode moraine.InodeID) (GrantKey, error) {
	p.mu.Lock()
	key, known := p.policies.resolve(asked, inode, p.c.clock.Now())
	p.mu.Unlock()
	if known {
		return key, nil
	}
	at := policyPlace(asked, inode)
	reply, err := p.c.GetPolicy(ctx, at)
	switch {
	case retry.IsKind(err, moraine.NotFound), retry.IsKind(err, moraine.PermissionDenied):
		// The inode is gone, or not visible to this session. The service may still give a grant,
		// which reports its scheme.
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
