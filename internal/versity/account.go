package versity

import (
	"slices"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"
)

// Account is the one account, in the form that the library requires. (Its own
// service for a single account answers an unknown key with an error of its
// administration interface, which S3 clients do not know.)
type Account struct {
	root auth.Account
}

// NewAccount returns the account of a root key.
func NewAccount(access, secret string) Account {
	return Account{auth.Account{Access: access, Secret: secret, Role: auth.RoleAdmin}}
}

var _ auth.IAMService = Account{}

func (a Account) GetUserAccount(access string) (auth.Account, error) {
	if access == a.root.Access {
		return a.root, nil
	}
	return auth.Account{}, auth.ErrNoSuchUser
}

// ResolveAccounts returns the keys that do not exist.
func (a Account) ResolveAccounts(keys []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == a.root.Access }), nil
}

func (Account) CreateAccount(auth.Account) error { return errOneAccount() }

func (Account) UpdateUserAccount(string, auth.MutableProps) error { return errOneAccount() }

func (Account) DeleteUserAccount(string) error { return errOneAccount() }

func (Account) ListUserAccounts() ([]auth.Account, error) { return nil, errOneAccount() }

func (Account) Shutdown() error { return nil }

func errOneAccount() error { return s3err.GetAPIError(s3err.ErrAdminMethodNotSupported) }
