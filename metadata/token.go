package metadata

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// keySpread is how long a new signing key is known to chunkservers, in cluster
// time, before a token is signed with it: each learns of it with a heartbeat.
const keySpread = 10 * time.Second

// signer issues session tokens. The id of a key is the cluster time, in
// milliseconds, at which it was made, so that its age survives a failover.
type signer struct {
	cluster clusterID
	life    time.Duration
	keys    atomic.Pointer[[]*wire.SigningKey] // by id
	time    func() uint64                      // cluster time, milliseconds
}

// sign returns an encoded SessionToken and when it ends.
func (s *signer) sign(id uint64, ses *session, now time.Time) ([]byte, int64, error) {
	key := s.current()
	if key == nil {
		return nil, 0, &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("there is no key to sign tokens with yet")}
	}
	expires := now.Add(s.life).Unix()
	claims := &wire.TokenClaims{
		Cluster: s.cluster.uuid[:], Session: id, AllTenants: ses.all,
		ReadOnly: ses.readOnly, Expires: expires, Key: key.Id,
		Incarnation: uint64(s.cluster.incarnation), Node: ses.node,
	}
	for _, t := range ses.tenants {
		claims.Tenants = append(claims.Tenants, uint32(t))
	}
	signed, err := proto.Marshal(claims)
	if err != nil {
		return nil, 0, err
	}
	private := ed25519.NewKeyFromSeed(key.PrivateKey)
	token, err := proto.Marshal(&wire.SessionToken{Claims: signed, Signature: ed25519.Sign(private, signed)})
	return token, expires, err
}

// current is the newest key that every chunkserver has had time to learn of, or
// the oldest where none is that old.
func (s *signer) current() *wire.SigningKey {
	keys := *s.keys.Load()
	now := s.time()
	for i := len(keys) - 1; i >= 0; i-- {
		if i == 0 || keys[i].Id+uint64(keySpread.Milliseconds()) <= now {
			return keys[i]
		}
	}
	return nil
}

// public returns the halves of the keys that a token may still be signed with.
func (s *signer) public() []*wire.SigningKey {
	keys := *s.keys.Load()
	now := s.time()
	out := make([]*wire.SigningKey, 0, 2)
	for i, k := range keys {
		if i+1 < len(keys) && keys[i+1].Id+uint64((keySpread+2*s.life).Milliseconds()) < now {
			continue // its last token has ended long ago
		}
		out = append(out, &wire.SigningKey{Id: k.Id, PublicKey: k.PublicKey})
	}
	return out
}

// newest returns the id of the newest key, and false where there is none.
func (s *signer) newest() (uint64, bool) {
	keys := *s.keys.Load()
	if len(keys) == 0 {
		return 0, false
	}
	return keys[len(keys)-1].Id, true
}

// rotateKey adds a signing key where there is none, or where the newest one is
// older than its life.
func (l *leader) rotateKey(ctx context.Context) error {
	now := l.clusterTime()
	newest, ok := l.tokens.newest()
	if ok && now < newest+uint64(l.cfg.KeyLife.Milliseconds()) {
		return nil
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(l.deps.Rand, seed); err != nil {
		return &moraine.Error{Op: "metadata.rotateKey", Kind: moraine.Internal, Err: err}
	}
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	key := &wire.SigningKey{Id: max(now, newest+1), PublicKey: public, PrivateKey: seed}
	if _, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_AddSigningKey{
		AddSigningKey: &statepb.AddSigningKey{Key: key}}}); err != nil {
		return err
	}
	return l.loadKeys()
}

func (l *leader) loadKeys() error {
	return l.store.View(func(r state.Reader, _ uint64) error {
		keys, err := l.machine.SigningKeys(r)
		if err == nil {
			l.tokens.keys.Store(&keys)
		}
		return err
	})
}
