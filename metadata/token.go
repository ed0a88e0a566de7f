package metadata

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// keySpread is how long chunkservers know a new signing key, in cluster time, before it signs a
// token. Each receives it with a heartbeat.
const keySpread = 10 * time.Second

// signer issues session tokens. The ID of a key is its creation in cluster time, in milliseconds,
// so that its age survives a failover.
type signer struct {
	cluster lead.ClusterID
	life    time.Duration
	keys    atomic.Pointer[[]signingKey] // by ID
	time    func() uint64                // cluster time, milliseconds
}

// signingKey is a key of the state. private is nil if this server cannot decrypt it.
type signingKey struct {
	*wire.SigningKey
	private ed25519.PrivateKey
}

// sign returns an encoded SessionToken and its end.
func (s *signer) sign(id uint64, ses *session, now time.Time) ([]byte, int64, error) {
	key := s.current()
	if key == nil {
		return nil, 0, &moraine.Error{Kind: moraine.Unavailable, Err: fmt.Errorf("there is no key to sign tokens with yet")}
	}
	expires := now.Add(s.life).Unix()
	claims := &wire.TokenClaims{
		Cluster: s.cluster.UUID[:], Session: id, AllTenants: ses.all,
		ReadOnly: ses.readOnly, Expires: expires, Key: key.Id,
		Incarnation: uint64(s.cluster.Incarnation), Node: ses.node, Principal: ses.principal[:],
	}
	for _, t := range ses.tenants {
		claims.Tenants = append(claims.Tenants, uint32(t))
	}
	signed, err := proto.Marshal(claims)
	if err != nil {
		return nil, 0, err
	}
	token, err := proto.Marshal(&wire.SessionToken{Claims: signed, Signature: ed25519.Sign(key.private, signed)})
	return token, expires, err
}

// current returns the newest key that every chunkserver has had time to receive, or
// else the oldest key. It considers only keys that this server can decrypt, and
// returns nil if there is none.
func (s *signer) current() *signingKey {
	keys := *s.keys.Load()
	now := s.time()
	var oldest *signingKey
	for i := len(keys) - 1; i >= 0; i-- {
		if keys[i].private == nil {
			continue
		}
		oldest = &keys[i]
		if oldest.Id+uint64(keySpread.Milliseconds()) <= now {
			return oldest
		}
	}
	return oldest
}

// public returns the public halves of the keys whose tokens may still be valid.
func (s *signer) public() []*wire.SigningKey {
	keys := *s.keys.Load()
	now := s.time()
	out := make([]*wire.SigningKey, 0, 2)
	for i, k := range keys {
		if i+1 < len(keys) && keys[i+1].Id+uint64((keySpread+2*s.life).Milliseconds()) < now {
			continue // its last token ended long ago
		}
		out = append(out, &wire.SigningKey{Id: k.Id, PublicKey: k.PublicKey})
	}
	return out
}

// newest returns the newest key; false if there is none.
func (s *signer) newest() (signingKey, bool) {
	keys := *s.keys.Load()
	if len(keys) == 0 {
		return signingKey{SigningKey: &wire.SigningKey{}}, false
	}
	return keys[len(keys)-1], true
}

// rotateKey adds a signing key if there is none, if the newest is older than its life, or if this
// server cannot decrypt it.
func (g *keyring) rotateKey(ctx context.Context) error {
	now := g.ClusterTime()
	newest, ok := g.tokens.newest()
	if ok && newest.private != nil && now < newest.Id+uint64(g.life.Milliseconds()) {
		return nil
	}
	held, err := g.secret(ok && newest.private == nil)
	if err != nil {
		return err
	}
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(g.rand, seed); err != nil {
		return &moraine.Error{Op: "metadata.rotateKey", Kind: moraine.Internal, Err: err}
	}
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	key := &wire.SigningKey{Id: max(now, newest.Id+1), PublicKey: public}
	if key.Sealed, err = held.seal(g.rand, g.Cluster.UUID, key, seed); err != nil {
		return &moraine.Error{Op: "metadata.rotateKey", Kind: moraine.Internal, Err: err}
	}
	if _, err := g.Command(ctx, &statepb.Command{Op: &statepb.Command_AddSigningKey{
		AddSigningKey: &statepb.AddSigningKey{Key: key}}}); err != nil {
		return err
	}
	return g.loadKeys()
}

// secret returns the cluster's secret, and generates it if this server has none. lost says that
// this server does not have the secret that encrypted the newest key.
func (g *keyring) secret(lost bool) (*secret, error) {
	keeper := g.secrets
	if lost {
		g.Log.Error("no metadata server that answered has the secret of the newest signing key: making a new key. "+
			"Sessions go on; clients get new tokens as soon as chunkservers know the key. If file SECRET of a metadata server was removed by mistake, do nothing else",
			"file", SecretFile, "held", keeper.held.Load() != nil)
	}
	if held := keeper.held.Load(); held != nil {
		return held, nil
	}
	var drawn secret
	if _, err := io.ReadFull(g.rand, drawn[:]); err != nil {
		return nil, &moraine.Error{Op: "metadata.secret", Kind: moraine.Internal, Err: err}
	}
	if err := keeper.keep(drawn); err != nil {
		return nil, err
	}
	g.Log.Info("made a new cluster secret")
	return &drawn, nil
}

// loadKeys reads the signing keys of the state and decrypts those that it can.
func (g *keyring) loadKeys() error {
	return g.Store.View(func(r kvtx.Reader, _ uint64) error {
		all, err := fleet.SigningKeys(g.Machine.View(r))
		if err != nil {
			return err
		}
		keys := make([]signingKey, len(all))
		held := g.secrets.held.Load()
		for i, k := range all {
			keys[i].SigningKey = k
			if held == nil {
				continue
			}
			private, err := held.open(g.Cluster.UUID, k)
			if err != nil && bytes.Equal(secretOf(k), held.id()) {
				g.Log.Error("a signing key cannot be opened", "key", k.Id, "err", err)
			}
			keys[i].private = private
		}
		g.tokens.keys.Store(&keys)
		return nil
	})
}

// keyring manages the keys that sign tokens and capabilities.
type keyring struct {
	*lead.Term
	life    time.Duration // age at which a key is replaced
	rand    io.Reader
	secrets *secretKeeper
	tokens  *signer
}
