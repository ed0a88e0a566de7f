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

// In mode crc a bulk connection is in clear, so that a token goes over it sealed:
// a nonce of 12 bytes and AES-256-GCM, under a key that both ends derive from that
// of their control connection.

// tokenKeyLabel keeps the key of tokens apart from that of proofs.
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

// sealToken returns what a connection with dataKey carries of token: the token
// itself where dataKey is nil, since the connection is encrypted then.
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
		err = errors.New("it is too short")
	}
	if err == nil {
		sealed, err = aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
	}
	if err != nil {
		return nil, &moraine.Error{Op: "transport.token", Kind: moraine.Unauthenticated, Err: fmt.Errorf("the token was not sealed for this connection: %w", err)}
	}
	return sealed, nil
}
