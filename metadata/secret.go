package metadata

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/state/fleet"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// The private keys that the metadata service signs with are in the state sealed, so
// that neither the log nor a snapshot nor a backup holds one: AES-256-GCM under the
// secret of the cluster, 32 random bytes that each metadata server keeps in a file.
// The leader that needs it first draws it. The others get it with the answers to
// their beats, which is a control connection: encrypted in the modes secure and crc.
// Where every copy is lost the leader draws another one, and new keys.

const (
	secretLen   = 32
	secretIDLen = 16
	// askSecretFor is how long a server that begins to lead without the secret asks the
	// others for it.
	askSecretFor = time.Second
)

// secret is the secret of a cluster. It never changes; another one has another id.
type secret [secretLen]byte

// id names the secret and tells nothing of it.
func (s *secret) id() []byte {
	sum := sha256.Sum256(append([]byte("moraine secret\x00"), s[:]...))
	return sum[:secretIDLen]
}

func (s *secret) cipher() (cipher.AEAD, error) {
	block, err := aes.NewCipher(s[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sealedFor is what a sealed key is bound to.
func sealedFor(cluster moraine.UUID, key *wire.SigningKey) []byte {
	b := append([]byte("moraine signing key\x00"), cluster[:]...)
	return append(binary.BigEndian.AppendUint64(b, key.Id), key.PublicKey...)
}

// seal returns {id of the secret, nonce, sealed seed}.
func (s *secret) seal(random io.Reader, cluster moraine.UUID, key *wire.SigningKey, seed []byte) ([]byte, error) {
	aead, err := s.cipher()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := io.ReadFull(random, nonce); err != nil {
		return nil, err
	}
	return aead.Seal(append(s.id(), nonce...), nonce, seed, sealedFor(cluster, key)), nil
}

// open returns the private half of a key that this secret sealed.
func (s *secret) open(cluster moraine.UUID, key *wire.SigningKey) (ed25519.PrivateKey, error) {
	aead, err := s.cipher()
	if err != nil {
		return nil, err
	}
	sealed, isOurs := bytes.CutPrefix(key.Sealed, s.id())
	if !isOurs || len(sealed) < aead.NonceSize() {
		return nil, errors.New("it is sealed under another secret")
	}
	seed, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], sealedFor(cluster, key))
	if err != nil {
		return nil, fmt.Errorf("open the sealed key: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("a sealed key of %d bytes", len(seed))
	}
	private := ed25519.NewKeyFromSeed(seed)
	if !bytes.Equal(private.Public().(ed25519.PublicKey), key.PublicKey) {
		return nil, errors.New("the sealed key is not the private half of the public one")
	}
	return private, nil
}

// secretOf returns the id of the secret that a key is sealed under.
func secretOf(key *wire.SigningKey) []byte { return key.Sealed[:min(len(key.Sealed), secretIDLen)] }

// Secrets keeps the cluster's secret for one metadata server. It need not be safe
// for concurrent use.
type Secrets interface {
	// Load returns what Store was given last; nil where nothing was.
	Load() ([]byte, error)
	// Store replaces the secret. When it returns nil the secret is durable.
	Store(secret []byte) error
}

// memorySecrets keeps the secret as long as its process.
type memorySecrets struct{ secret []byte }

func (m *memorySecrets) Load() ([]byte, error) { return m.secret, nil }

func (m *memorySecrets) Store(b []byte) error { m.secret = bytes.Clone(b); return nil }

// secretKeeper is a server's copy of the secret.
type secretKeeper struct {
	mu    sync.Mutex // guards store
	store Secrets
	held  atomic.Pointer[secret] // nil where there is none
}

// load reads the secret that was kept.
func (k *secretKeeper) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, err := k.store.Load()
	if err != nil || b == nil {
		return err
	}
	if len(b) != secretLen {
		return &moraine.Error{Op: "metadata.secret", Kind: moraine.Corrupt, Err: fmt.Errorf("a secret of %d bytes", len(b))}
	}
	s := secret(b)
	k.held.Store(&s)
	return nil
}

// keep makes s this server's secret.
func (k *secretKeeper) keep(s secret) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.store.Store(s[:]); err != nil {
		return err
	}
	k.held.Store(&s)
	return nil
}

// has reports whether the secret named id is held.
func (k *secretKeeper) has(id []byte) bool {
	s := k.held.Load()
	return s != nil && bytes.Equal(s.id(), id)
}

// wantedSecret returns the id of the secret that the newest key of this server's
// state is sealed under, where the server does not have it.
func (s *Server) wantedSecret() []byte {
	var want []byte
	err := s.store.View(func(r kvtx.Reader, _ uint64) error {
		keys, err := fleet.SigningKeys(s.machine.View(r))
		if err == nil && len(keys) > 0 {
			want = secretOf(keys[len(keys)-1])
		}
		return err
	})
	if err != nil || len(want) == 0 || s.secrets.has(want) {
		return nil
	}
	return want
}

// giveSecret puts the secret into the answer to a beat of a server that asks for it.
// Only a metadata server gets it, and none that the leader refuses.
func (s *Server) giveSecret(c *lead.Call, reply *wire.MemberBeatReply) {
	want := c.Req.GetMemberBeat().GetWantSecret()
	if len(want) == 0 || reply.Refused != "" || c.Caller.Role != string(transport.RoleMetadata) || !s.secrets.has(want) {
		return
	}
	held := s.secrets.held.Load()
	reply.Secret = held[:]
}

// takeSecret keeps the secret that another server gave, where it is the one that was
// asked for.
func (s *Server) takeSecret(want []byte, reply *wire.MemberBeatReply) {
	if len(want) == 0 || len(reply.Secret) != secretLen {
		return
	}
	got := secret(reply.Secret)
	if !bytes.Equal(got.id(), want) {
		return
	}
	if err := s.secrets.keep(got); err != nil {
		s.deps.Log.Error("could not keep the cluster secret", "from", reply.Id, "err", err)
		return
	}
	s.deps.Log.Info("got the cluster secret", "from", reply.Id)
}

// askSecret asks all other servers for the secret that this one lacks, and returns
// when one gave it or each has answered.
func (s *Server) askSecret(ctx context.Context) {
	m := s.seating()
	if m == nil || s.deps.Dial == nil || s.wantedSecret() == nil {
		return
	}
	seat, err := m.Seat()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askSecretFor)
	defer cancel()
	var wg sync.WaitGroup
	for _, other := range s.reachable() {
		if other.Id == s.cfg.Node {
			continue
		}
		wg.Go(func() {
			if _, err := s.sendBeat(ctx, other.Addresses, seat.DataID); err == nil && s.wantedSecret() == nil {
				cancel()
			}
		})
	}
	wg.Wait()
}
