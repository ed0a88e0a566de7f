package transport

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/morainefs/moraine"
)

// In mode crc a bulk connection is unencrypted, so a token is sealed on it with
// a nonce of 12 bytes and AES-256-GCM. Both ends derive the key from that of
// their control connection.

// tokenKeyLabel separates the key of tokens from that of proofs.
const tokenKeyLabel = "moraine token"

func tokenCipher(dataKey []byte) (cipher.AEAD, error) {
	m := hmac.New(sha256.New, dataKey)
	m.Write([]byte(tokenKeyLabel))
	block, err := aes.NewCipher(m.Sum(nil))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sealToken returns token as sent on a connection with dataKey. If dataKey is nil
// the connection is encrypted, and this is the token itself.
func sealToken(dataKey, token []byte) ([]byte, error) {
	if dataKey == nil || len(token) == 0 {
		return token, nil
	}
	aead, err := tokenCipher(dataKey)
	if err != nil {
		return nil, &moraine.Error{Op: "transport.token", Kind: moraine.Internal, Err: err}
	}
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+len(token)+aead.Overhead())
	rand.Read(nonce) //nolint:errcheck // never fails
	return aead.Seal(nonce, nonce, token, nil), nil
}

// openToken returns the token that sealToken sealed.
func openToken(dataKey, sealed []byte) ([]byte, error) {
	if dataKey == nil || len(sealed) == 0 {
		return sealed, nil
	}
	aead, err := tokenCipher(dataKey)
	if err == nil && len(sealed) < aead.NonceSize() {
		err = errors.New("token is too short")
	}
	if err == nil {
		sealed, err = aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
	}
	if err != nil {
		return nil, &moraine.Error{Op: "transport.token", Kind: moraine.Unauthenticated, Err: fmt.Errorf("token was not sealed for this connection: %w", err)}
	}
	return sealed, nil
}
