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

// The private signing keys of the metadata service are encrypted in the state.
// So neither the log nor a snapshot nor a backup has one in clear. The cipher
// is AES-256-GCM with the cluster's secret, 32 random bytes that each metadata
// server keeps in a file. The leader that needs the secret first generates it.
// The others receive it with the answers to their beats, over a control
// connection that is encrypted in the modes secure and crc. If every copy is
// lost, the leader generates another secret and new keys.

const (
	secretLen   = 32
	secretIDLen = 16
	// askSecretFor is how long a new leader without the secret asks the others for it.
	askSecretFor = time.Second
)

// secret is a cluster's secret. It never changes; another secret has another ID.
type secret [secretLen]byte

// id identifies the secret without revealing it.
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

// sealedFor is the additional data to which an encrypted key is bound.
func sealedFor(cluster moraine.UUID, key *wire.SigningKey) []byte {
	b := append([]byte("moraine signing key\x00"), cluster[:]...)
	return append(binary.BigEndian.AppendUint64(b, key.Id), key.PublicKey...)
}

// seal returns {id of the secret, nonce, encrypted seed}.
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

// open decrypts the private half of a key that this secret encrypted.
func (s *secret) open(cluster moraine.UUID, key *wire.SigningKey) (ed25519.PrivateKey, error) {
	aead, err := s.cipher()
	if err != nil {
		return nil, err
	}
	sealed, isOurs := bytes.CutPrefix(key.Sealed, s.id())
	if !isOurs || len(sealed) < aead.NonceSize() {
		return nil, errors.New("the key is sealed with another cluster secret")
	}
	seed, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], sealedFor(cluster, key))
	if err != nil {
		return nil, fmt.Errorf("open the sealed key: %w", err)
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("a sealed key cannot have %d bytes", len(seed))
	}
	private := ed25519.NewKeyFromSeed(seed)
	if !bytes.Equal(private.Public().(ed25519.PublicKey), key.PublicKey) {
		return nil, errors.New("the sealed private key does not match the public key")
	}
	return private, nil
}

// secretOf returns the ID of the secret that encrypted a key.
func secretOf(key *wire.SigningKey) []byte { return key.Sealed[:min(len(key.Sealed), secretIDLen)] }

// Secrets keeps the cluster's secret for one metadata server. It need not be safe
// for concurrent use.
type Secrets interface {
	// Load returns what Store last stored; nil if nothing was.
	Load() ([]byte, error)
	// Store replaces the secret. When it returns nil the secret is durable.
	Store(secret []byte) error
}

// memorySecrets keeps the secret in memory, as long as its process.
type memorySecrets struct{ secret []byte }

func (m *memorySecrets) Load() ([]byte, error) { return m.secret, nil }

func (m *memorySecrets) Store(b []byte) error { m.secret = bytes.Clone(b); return nil }

// secretKeeper is a server's copy of the secret.
type secretKeeper struct {
	mu    sync.Mutex // guards store
	store Secrets
	held  atomic.Pointer[secret] // nil if there is none
}

// load reads the stored secret.
func (k *secretKeeper) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, err := k.store.Load()
	if err != nil || b == nil {
		return err
	}
	if len(b) != secretLen {
		return &moraine.Error{Op: "metadata.secret", Kind: moraine.Corrupt, Err: fmt.Errorf("the secret cannot have %d bytes", len(b))}
	}
	s := secret(b)
	k.held.Store(&s)
	return nil
}

// keep stores s as this server's secret.
func (k *secretKeeper) keep(s secret) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.store.Store(s[:]); err != nil {
		return err
	}
	k.held.Store(&s)
	return nil
}

// has reports whether the server has the secret with that ID.
func (k *secretKeeper) has(id []byte) bool {
	s := k.held.Load()
	return s != nil && bytes.Equal(s.id(), id)
}

// wantedSecret returns the ID of the secret that encrypted the newest key in this server's state,
// if the server does not have that secret.
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

// giveSecret adds the secret to the answer to a beat (Group.JudgeBeat) that
// requests it. Only metadata servers get it, and only if the leader accepts
// them.
func (s *Server) giveSecret(c *lead.Call, reply *wire.MemberBeatReply) {
	want := c.Req.GetMemberBeat().GetWantSecret()
	if len(want) == 0 || reply.Refused != "" || c.Caller.Role != string(transport.RoleMetadata) || !s.secrets.has(want) {
		return
	}
	held := s.secrets.held.Load()
	reply.Secret = held[:]
}

// takeSecret stores a secret from another server if it is the requested one.
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

// askSecret asks all other servers for the missing secret, and returns when one sent it or all have
// answered.
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
